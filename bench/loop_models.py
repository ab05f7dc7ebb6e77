"""Models with loops for the laboratory: what their parts take, and how often rows go round.

Owns: `LoopModel`, `MODELS` and drawing the rows of a trace.
Must not know: policies, loads, what is measured.

*Synthetic* ones have times of the form fixed + per row. `lstm-cpu` is an 8-layer LSTM decoder of width 1024 on two
cores; `decoder-gpu` a decoder whose steps are bound by memory behind an encoder bound by arithmetic; `speech` has a
dear encoder and long tails. `npu-*` are the paper's networks on the simulated 128 x 128 machine: the encoder of the
profile, and the middle one of its unrolled decoder steps as the loop's body. `seq2seq` encodes in a loop, too, one
iteration per input token (known), and decodes about as many as it read (not known). `frames` is a single loop over
chunks, as often as there are (known): voice activity detection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from bench.common import ROOT
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.profiles import load
from lazybatch.workload import lognormal_lengths, weighted_lengths

MS = 1_000_000
Lengths = list[tuple[int, ...]]
"""By row, its trips in each loop."""


@dataclass(frozen=True)
class LoopModel:
    """A model to serve. loops: (first node, node behind the last). known: of which loops a request says its trips.

    draw: trips of so many rows, from a seed. The first loop's are the row's size where ``known[0]`` holds.
    """

    name: str
    make_table: Callable[[], LatencyTable]
    loops: tuple[tuple[int, int], ...]
    known: tuple[bool, ...]
    rows_max: int
    draw: Callable[[int, int], Lengths]
    trips_max: int | None = None

    def spec(self) -> LaneSpec:
        """The lane, characterised by lengths that are not those of any trace."""
        return _spec(self)

    def requests(self, arrivals_ns: Sequence[int], seed: int, sla_ns: int | None = None) -> list[Request]:
        """The rows of a trace; what they know of their trips, they say."""
        made = []
        for k, (at_ns, trips) in enumerate(zip(arrivals_ns, self.draw(len(arrivals_ns), seed + 1000), strict=True)):
            told = tuple([count if known else None for count, known in zip(trips, self.known, strict=True)])
            deadline_ns = UNBOUNDED_NS if sla_ns is None else at_ns + sla_ns
            size = trips[0] if self.known[0] else 1
            made.append(Request(k, self.name, at_ns, deadline_ns, size=size, trips=told))
        return made

    def trips(self, requests: int, seed: int) -> dict[int, tuple[int, ...]]:
        """By row, the trips it really makes."""
        return dict(enumerate(self.draw(requests, seed + 1000)))


@cache
def _spec(model: LoopModel) -> LaneSpec:
    table = model.make_table()
    loops = [
        Loop(f"loop{n}", first, stop, trips_max=None if model.known[n] else model.trips_max)
        for n, (first, stop) in enumerate(model.loops)
    ]
    seen = model.draw(2000, 99)
    sizes = [trips[0] for trips in seen] if model.known[0] else []
    lengths = tuple(LengthGuess.of([trips[n] for trips in seen], sizes) for n in range(len(loops)))
    graph = NodeGraph.chain(model.name, table.nodes, loops)
    return LaneSpec(graph, table, max_batch_size=model.rows_max, queue_capacity=1 << 30, lengths=lengths)


def _affine(name: str, rows_max: int, **parts_ms: tuple[float, float]) -> Callable[[], LatencyTable]:
    """Nodes whose times are fixed + per row, in ms."""

    def made() -> LatencyTable:
        sizes = (1, rows_max)
        times = tuple(
            tuple(round((fixed + per_row * rows) * MS) for rows in sizes) for fixed, per_row in parts_ms.values()
        )
        return LatencyTable(name, tuple(parts_ms), sizes, times, times, {"synthetic": True})

    return made


def _npu(name: str, network: str, step: str) -> Callable[[], LatencyTable]:
    """The encoder and one decoding step of an unrolled profile; the step is the middle one."""

    def made() -> LatencyTable:
        whole = load(ROOT / "profiles" / "npu-128x128" / f"{network}.json")
        numbers = [_number(node, step) for node in whole.nodes]
        middle = (max(n for n in numbers if n is not None) + 1) // 2
        parts = [
            [times for number, times in zip(numbers, whole.median_ns, strict=True) if number == which]
            for which in (None, middle)
        ]
        times = tuple(tuple(map(sum, zip(*part, strict=True))) for part in parts)
        return LatencyTable(name, ("encoder", "step"), whole.batch_sizes, times, times, dict(whole.provenance))

    return made


def _number(node: str, step: str) -> int | None:
    """Of which decoding step a node of an unrolled network is a part; None for the encoder's."""
    head = node.partition(".")[0]
    return int(head[len(step) :]) if head.startswith(step) else None


def _weighted(weights: dict[int, float]) -> Callable[[int, int], Lengths]:
    return lambda requests, seed: [(length,) for length in weighted_lengths(weights, requests, seed)]


def _lognormal(mean: float, sigma: float, longest: int) -> Callable[[int, int], Lengths]:
    return lambda requests, seed: [
        (length,) for length in lognormal_lengths(mean, requests, seed, sigma=sigma, longest=longest)
    ]


def _translated(requests: int, seed: int) -> Lengths:
    """Sentences of 18 tokens on average, and translations that are 0.7 to 1.5 times as long."""
    rng = random.Random(seed + 1)
    sources = lognormal_lengths(18, requests, seed, sigma=0.5, longest=60)
    return [(source, max(1, min(80, round(source * rng.uniform(0.7, 1.5))))) for source in sources]


SENTENCES = {5: 0.2, 15: 0.45, 25: 0.25, 35: 0.1}
_WORDS = _lognormal(18, 0.5, 60)

MODELS = (
    LoopModel(
        "lstm-cpu",
        _affine("lstm-cpu", 64, encode=(20.0, 3.0), step=(13.0, 0.95)),
        ((1, 2),),
        (False,),
        64,
        _weighted(SENTENCES),
    ),
    LoopModel(
        "decoder-gpu",
        _affine("decoder-gpu", 32, encode=(6.0, 0.8), step=(4.0, 0.03)),
        ((1, 2),),
        (False,),
        32,
        _weighted(SENTENCES),
    ),
    LoopModel(
        "speech",
        _affine("speech", 16, encode=(80.0, 20.0), step=(8.0, 1.5)),
        ((1, 2),),
        (False,),
        16,
        _weighted({10: 0.5, 40: 0.4, 120: 0.1}),
    ),
    LoopModel("npu-gnmt", _npu("npu-gnmt", "gnmt", "step"), ((1, 2),), (False,), 64, _WORDS, 80),
    LoopModel("npu-transformer", _npu("npu-transformer", "transformer", "step"), ((1, 2),), (False,), 64, _WORDS, 80),
    LoopModel("npu-las", _npu("npu-las", "las", "spell"), ((1, 2),), (False,), 64, _lognormal(60, 0.5, 200), 200),
    LoopModel(
        "seq2seq",
        _affine("seq2seq", 32, read=(6.0, 0.5), bridge=(4.0, 0.3), step=(13.0, 0.95)),
        ((0, 1), (2, 3)),
        (True, False),
        32,
        _translated,
        80,
    ),
    LoopModel("frames", _affine("frames", 32, chunk=(0.5, 0.05)), ((0, 1),), (True,), 32, _lognormal(100, 0.7, 600)),
)
