"""A small decoder whose attention keeps its own cache, as language models are exported for ONNX Runtime.

Owns: `Decoder`: its file with seeded weights, the program over it, and what it answers to one row alone, in a plain
loop over the whole model. Must not know: how programs are executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lazybatch.program import Carry, Program, Repeat, Stage
from tests.onnx_models import BOOL, F32, I32, I64, build, const, floats, op, save, value
from tests.whole import Whole


@dataclass(frozen=True)
class Decoder:
    """Layers of GroupQueryAttention with rotary positions, each with a cache of ``slots`` positions, then a word.

    Of every layer past and present have the same shape, [rows, kv_heads, slots, width]; the row's own position says how
    much of it is filled. Word 0 ends a row.
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

    def write(self, path: Path) -> Path:
        """token, position [B] and caches -> token_next, finished [B] and caches."""
        hidden = self.heads * self.width
        cache = ["B", self.kv_heads, self.slots, self.width]
        angles = np.outer(np.arange(self.slots), 1e4 ** -np.linspace(0, 1, self.width // 2, endpoint=False))
        consts = [
            const("table", floats(1, self.words, hidden)),
            const("one", [1]),
            const("total", [self.slots], np.int32),
            const("cos", np.cos(angles).astype(np.float32)),
            const("sin", np.sin(angles).astype(np.float32)),
            const("out", floats(2, hidden, self.words)),
            const("end", 0),
        ]
        nodes = [op("Gather", "table token", "x0"), op("Cast", "position", "lengths", to=I32)]
        for n in range(self.layers):
            widths = {"q": hidden, "k": self.kv_heads * self.width, "v": self.kv_heads * self.width}
            for seed, (kind, size) in enumerate(widths.items()):
                consts.append(const(f"w_{kind}{n}", floats(10 * n + seed, hidden, size, scale=hidden**-0.5)))
                nodes += [op("MatMul", f"x{n} w_{kind}{n}", f"{kind}{n}_flat")]
                nodes += [op("Unsqueeze", f"{kind}{n}_flat one", f"{kind}{n}")]
            nodes += [
                op(
                    "GroupQueryAttention",
                    f"q{n} k{n} v{n} past_k{n} past_v{n} lengths total cos sin",
                    f"attended{n} present_k{n} present_v{n}",
                    domain="com.microsoft",
                    num_heads=self.heads,
                    kv_num_heads=self.kv_heads,
                    do_rotary=1,
                ),
                op("Squeeze", f"attended{n} one", f"a{n}"),
                op("Add", f"a{n} x{n}", f"x{n + 1}"),
            ]
        nodes += [
            op("MatMul", f"x{self.layers} out", "scores"),
            op("ArgMax", "scores", "token_next", axis=1, keepdims=0),
            op("Equal", "token_next end", "finished"),
        ]
        inputs = [value("token", I64, ["B"]), value("position", I64, ["B"])]
        inputs += [value(name, F32, cache) for name in self.states]
        outputs = [value("token_next", I64, ["B"]), value("finished", BOOL, ["B"])]
        outputs += [value(name, F32, cache) for name in self.states.values()]
        return save(build(nodes, inputs, outputs, consts, domains={"com.microsoft": 1}), path)

    def program(self, path: Path, *, in_place: bool = True, trips_max: int | None = None) -> Program:
        """From a first word on, word by word."""
        carry = {name: Carry(output, in_place=in_place) for name, output in self.states.items()}
        loop = Repeat(
            carry={"token": Carry("token_next", "first"), **carry},
            iteration="position",
            done="finished",
            trips_max=trips_max or self.slots,
            collect=("token_next",),
        )
        return Program("cached", (Stage("decoder", path, loop=loop),), {"words": "decoder.token_next"})

    def alone(self, path: Path, firsts: list[int]) -> list[list[int]]:
        """The words after each of these first ones."""
        whole = Whole(path)
        blank = np.zeros((1, self.kv_heads, self.slots, self.width), np.float32)
        found = []
        for first in firsts:
            feeds = {"token": np.array([first]), **dict.fromkeys(self.states, blank)}
            words: list[int] = []
            while len(words) < self.slots and 0 not in words:
                made = whole.run({**feeds, "position": np.array([len(words)])})
                feeds = {"token": made["token_next"], **{name: made[next_] for name, next_ in self.states.items()}}
                words.append(int(made["token_next"][0]))
            found.append(words)
        return found
