"""Models in ONNX's own text form, and partitions of them cut as finely as can be proved.

Owns: `text_model`, `cut`.
Must not know: which fault a model is meant to show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import parser

from lazybatch.partition.onnx import partition_onnx
from lazybatch.partition.pieces import Partition

HEAD = '<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>\n'


def text_model(text: str, opset: int = 17) -> onnx.ModelProto:
    """A model from the text of its graph."""
    return parser.parse_model(HEAD.format(opset=opset) + text)


def cut(model: onnx.ModelProto | str, folder: Path, **options: Any) -> Partition:
    """The finest partition of the model that can be proved, in a directory below the folder."""
    proto = text_model(model) if isinstance(model, str) else model
    path = folder / "model.onnx"
    onnx.save(proto, str(path))
    options.setdefault("preempt_within_s", 1e-9)
    return partition_onnx(path, folder / "parts", **options)
