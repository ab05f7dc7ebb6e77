"""What the zoo holds: names, inputs and outputs of its models, without torch.

Owns: `ZOO` and seeded sample inputs.
Must not know: how a model is built or exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH_DEFAULT = 64
LENGTH_MAX = 512
VOCABULARY = 30522


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: its builder's module in this package, the names of its tensors, and whether it reads tokens."""

    title: str
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tokens: bool = False


ZOO: Mapping[str, Entry] = {
    "resnet50": Entry("ResNet-50", "graphs.resnet", ("image",), ("logits",)),
    "vgg16": Entry("VGG-16", "graphs.vgg", ("image",), ("logits",)),
    "mobilenetv2": Entry("MobileNetV2", "graphs.mobilenet", ("image",), ("logits",)),
    "bert-base": Entry(
        "BERT-base", "graphs.bert", ("input_ids", "attention_mask"), ("last_hidden_state", "pooler_output"), tokens=True
    ),
    "minilm": Entry(
        "MiniLM-L6",
        "graphs.minilm",
        ("input_ids", "attention_mask"),
        ("last_hidden_state", "sentence_embedding"),
        tokens=True,
    ),
}


def file_name(name: str, length: int | None = LENGTH_DEFAULT) -> str:
    """The exported file's name; for a model of tokens it says the length ("any" for None)."""
    return f"{name}-{length or 'any'}.onnx" if ZOO[name].tokens else f"{name}.onnx"


def sample(name: str, rows: int, *, length: int = LENGTH_DEFAULT, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Seeded inputs for ``rows`` rows: unit noise as image (rows, 3, 224, 224), or tokens (rows, length).

    Token rows have different true lengths (from half of ``length`` up), the rest is masked padding.
    """
    rng = np.random.default_rng(seed)
    if not ZOO[name].tokens:
        return {"image": rng.standard_normal((rows, 3, 224, 224), dtype=np.float32)}
    true_lengths = rng.integers(max(1, length // 2), length + 1, size=rows)
    mask = (np.arange(length)[None, :] < true_lengths[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(1000, VOCABULARY, size=(rows, length)) * mask, "attention_mask": mask}
