"""A decoder whose attention keeps its own cache, as language models are exported for ONNX Runtime.

Owns: `Decoder`: its file with seeded weights, and the program over it.
Must not know: how programs are run, what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from lazybatch.program import Carry, Program, Repeat, Stage

node = helper.make_node
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Decoder:
    """Layers of GroupQueryAttention with rotary positions, each with a cache of ``slots`` positions, then a word.

    Of every layer past and present have the same shape, [rows, kv_heads, slots, width], float32; the row's own position
    says how much of it is filled. Word 0 ends a row.
    """

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    slots: int = 24
    words: int = 31

    @property
    def states(self) -> dict[str, str]:
        """Past -> present, layer by layer."""
        return {f"past_{kind}{n}": f"present_{kind}{n}" for n in range(self.layers) for kind in "kv"}

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """Of one state of one row."""
        return self.kv_heads, self.slots, self.width

    @property
    def cache_bytes(self) -> int:
        """Of all states of one row."""
        return len(self.states) * int(np.prod(self.cache_shape)) * 4

    def write(self, path: Path) -> Path:
        """token, position [B] and caches -> token_next, finished [B] and caches."""
        hidden = self.heads * self.width
        angles = np.outer(np.arange(self.slots), 1e4 ** -np.linspace(0, 1, self.width // 2, endpoint=False))
        held: dict[str, NDArray[Any]] = {
            "table": _weights(1, self.words, hidden),
            "one": np.array([1]),
            "total": np.array([self.slots], np.int32),
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
            "out": _weights(2, hidden, self.words),
            "end": np.array(0),
        }
        nodes = [node("Gather", ["table", "token"], ["x0"])]
        nodes.append(node("Cast", ["position"], ["lengths"], to=TensorProto.INT32))
        for layer in range(self.layers):
            nodes += self._layer(layer, held)
        nodes += [
            node("MatMul", [f"x{self.layers}", "out"], ["scores"]),
            node("ArgMax", ["scores"], ["token_next"], axis=1, keepdims=0),
            node("Equal", ["token_next", "end"], ["finished"]),
        ]
        given = [_port("token", TensorProto.INT64), _port("position", TensorProto.INT64)]
        made = [_port("token_next", TensorProto.INT64), _port("finished", TensorProto.BOOL)]
        given += [_port(name, TensorProto.FLOAT, self.cache_shape) for name in self.states]
        made += [_port(name, TensorProto.FLOAT, self.cache_shape) for name in self.states.values()]
        weights = [numpy_helper.from_array(value, name) for name, value in held.items()]
        graph = helper.make_graph(nodes, "decoder", given, made, weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    def _layer(self, n: int, held: dict[str, NDArray[Any]]) -> list[onnx.NodeProto]:
        hidden, cached = self.heads * self.width, self.kv_heads * self.width
        nodes: list[onnx.NodeProto] = []
        for seed, (kind, size) in enumerate((("q", hidden), ("k", cached), ("v", cached))):
            held[f"w_{kind}{n}"] = _weights(10 * n + seed, hidden, size, scale=hidden**-0.5)
            nodes.append(node("MatMul", [f"x{n}", f"w_{kind}{n}"], [f"{kind}{n}_flat"]))
            nodes.append(node("Unsqueeze", [f"{kind}{n}_flat", "one"], [f"{kind}{n}"]))
        reads = [*(f"{kind}{n}" for kind in "qkv"), f"past_k{n}", f"past_v{n}", "lengths", "total", "cos", "sin"]
        makes = [f"attended{n}", f"present_k{n}", f"present_v{n}"]
        sizes: dict[str, Any] = {"num_heads": self.heads, "kv_num_heads": self.kv_heads}
        nodes += [
            node("GroupQueryAttention", reads, makes, domain=MICROSOFT, do_rotary=1, **sizes),
            node("Squeeze", [f"attended{n}", "one"], [f"a{n}"]),
            node("Add", [f"a{n}", f"x{n}"], [f"x{n + 1}"]),
        ]
        return nodes

    def program(self, path: Path, *, in_place: bool = True, counted: bool = False) -> Program:
        """From a first word on, word by word, until word 0 or the caches are full; or (counted) as often as rows say.

        Inputs: first, and count where it is counted; output: words.
        """
        carry = {name: Carry(output, in_place=in_place) for name, output in self.states.items()}
        ends: dict[str, Any] = {"trips": "count"} if counted else {"done": "finished"}
        loop = Repeat(
            carry={"token": Carry("token_next", "first"), **carry},
            iteration="position",
            trips_max=self.slots,
            collect=("token_next",),
            **ends,
        )
        return Program("cached", (Stage("decoder", path, loop=loop),), {"words": "decoder.token_next"})


def _port(name: str, dtype: int, shape: Sequence[int] = ()) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, ["B", *shape])


def _weights(seed: int, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
