"""What an iteration takes where the body keeps a cache of its own: carried, and kept in place.

Owns: the runs, their timing, and the figures.
Must not know: how rows lie in memory, how answers are scheduled.

    python bench/caches.py --json caches.json                (five minutes)

A decoder of GroupQueryAttention runs a full batch from the first position to the last, in four ways, side by side step
by step: as a program whose cache is carried (the operator writes all of the next one), as one whose cache is kept in
place, and as loops written by hand over one session with bound memory, which do the same two things. Rows are as one
would serve them afterwards: random arrivals and lengths, under two policies; their words must be those of the loop by
hand over one row.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench.cached_decoder import Decoder
from bench.common import CACHE, Report, fill_in, make_folder, parser, progress, ratio, run_script
from lazybatch.executors.ort.piece import OrtPiece, Place
from lazybatch.executors.ort.session import open_session
from lazybatch.executors.program.model import ProgramModel
from lazybatch.program import Program

POLICIES = ("lookahead", "continuous")
BY_HAND_LIMIT, CARRIED_LIMIT = 1.03, 0.8
WINDOWS = 4


class ByHand:
    """A loop over one session with memory bound beforehand, for rows that start together.

    shared: past and present are one memory; else they change places after every step.
    """

    def __init__(self, decoder: Decoder, path: Path, firsts: Sequence[int], *, shared: bool) -> None:
        session = open_session(path, optimise=True)
        names = [[port.name for port in ports] for ports in (session.get_inputs(), session.get_outputs())]
        piece = OrtPiece.of("whole", session, tuple(names[0]), tuple(names[1]), "cpu")
        rows = len(firsts)
        tokens = [np.array(firsts), np.zeros(rows, np.int64)]
        self._position = np.zeros(rows, np.int64)
        finished = np.zeros(rows, np.bool_)
        caches = {name: [np.zeros((rows, *decoder.cache_shape), np.float32)] for name in decoder.states}
        for pair in caches.values():
            pair.append(pair[0] if shared else np.zeros_like(pair[0]))
        self.words: list[list[int]] = []
        self._tokens = tokens
        self._held = finished, caches  # bound by address: nobody else keeps them alive
        self._calls = []
        for turn in (0, 1):
            given = {"token": tokens[turn], "position": self._position}
            given |= {name: pair[turn] for name, pair in caches.items()}
            made = {"token_next": tokens[1 - turn], "finished": finished}
            made |= {decoder.states[name]: pair[1 - turn] for name, pair in caches.items()}
            self._calls.append(piece.bind(_places(given), _places(made)))

    def step(self) -> None:
        """One more word of all rows."""
        turn = len(self.words) % 2
        self._calls[turn]()
        self.words.append(self._tokens[1 - turn].tolist())
        self._position += 1


def _places(arrays: dict[str, Any]) -> list[Place]:
    return [Place(name, array.dtype, array.shape, array.ctypes.data) for name, array in arrays.items()]


class AsProgram:
    """The same rows through the executor of a program."""

    def __init__(self, model: ProgramModel, firsts: Sequence[int], count: int) -> None:
        self._executor = model.executor(max_batch_size=len(firsts))
        self.buffers_bytes = self._executor.memory().buffers_bytes
        rows = {k: model.admit({"first": first, "count": count}) for k, first in enumerate(firsts)}
        self._executor.open(0, rows, len(rows))

    def step(self) -> None:
        """One more word of all rows."""
        self._executor.run(0, 0)

    def words(self) -> list[list[int]]:
        """What every row has got, after its last step."""
        return [result["words"].tolist() for result in self._executor.close(0).values()]


def _loaded(program: Program) -> ProgramModel:
    model = lb.load(program, require_joinable=True)
    assert isinstance(model, ProgramModel), "it is a program"
    return model


def measure_steps(report: Report, decoder: Decoder, path: Path, rows: int) -> None:
    """All four ways side by side, from the first position to the last."""
    firsts = [1 + k % (decoder.words - 1) for k in range(rows)]
    programs = {
        name: AsProgram(_loaded(decoder.program(path, in_place=one, counted=True)), firsts, decoder.slots)
        for name, one in (("carried", False), ("in_place", True))
    }
    hands = {
        f"by_hand_{name}": ByHand(decoder, path, firsts, shared=one)
        for name, one in (("carried", False), ("in_place", True))
    }
    ways: dict[str, Callable[[], object]] = {name: way.step for name, way in programs.items()}
    ways |= {name: way.step for name, way in hands.items()}
    times: dict[str, list[int]] = {name: [] for name in ways}
    names = list(ways)
    for step in range(decoder.slots):
        progress(f"position {step} of {decoder.slots}")
        for name in names[step % len(names) :] + names[: step % len(names)]:
            begin_ns = time.perf_counter_ns()
            ways[name]()
            times[name].append(time.perf_counter_ns() - begin_ns)
    answers = [way.words() for way in programs.values()]
    answers += [[list(words) for words in zip(*way.words, strict=True)] for way in hands.values()]
    size = decoder.slots // WINDOWS
    for window in range(WINDOWS):
        part = slice(window * size, (window + 1) * size)
        medians = {f"{name}_ms": statistics.median(times[name][part]) / 1e6 for name in names}
        report.rows.append({"what": "step", "rows": rows, "positions": f"{part.start}-{part.stop}", **medians})
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in report.rows[-1].items()})
    report.rows.append({"what": "memory", **{name: way.buffers_bytes for name, way in programs.items()}})
    report.rows[-1]["cache_bytes"] = rows * decoder.cache_bytes
    report.figure("same_words", all(one == answers[0] for one in answers), "equal", answers[1:] == answers[:-1])
    report.at_most("in_place/carried", ratio(times["in_place"], times["carried"]), CARRIED_LIMIT)
    by_hand = ratio(times["in_place"], times["by_hand_in_place"])
    report.at_most("in_place/by_hand", by_hand, BY_HAND_LIMIT)
    report.at_most("carried/by_hand", ratio(times["carried"], times["by_hand_carried"]), BY_HAND_LIMIT)


def measure_served(report: Report, decoder: Decoder, path: Path, rows: int, requests: int, seed: int) -> None:
    """Rows that come at random and leave early: are their words those of the loop by hand over one row?"""
    rng = random.Random(seed)
    given = [
        {"first": rng.randrange(1, decoder.words), "count": rng.randint(1, decoder.slots)} for _ in range(requests)
    ]
    wanted: dict[int, list[int]] = {}
    for first in sorted({one["first"] for one in given}):
        progress(f"word {first} alone")
        alone = ByHand(decoder, path, [first], shared=False)
        for _ in range(max(one["count"] for one in given if one["first"] == first)):
            alone.step()
        wanted[first] = [words[0] for words in alone.words]
    model = _loaded(decoder.program(path, counted=True))
    for policy in POLICIES:
        progress(f"served under {policy}")
        with lb.LazyBatcher(model, policy=policy, max_batch_size=rows, queue_capacity=requests) as batcher:
            begin_s = time.perf_counter()
            futures = []
            for one in given:
                futures.append(batcher.submit(one))
                time.sleep(rng.expovariate(1 / 0.004))
            found = [future.result(600)["words"].tolist() for future in futures]
            took_s = time.perf_counter() - begin_s
            stats = batcher.stats()
        equal = sum(words == wanted[one["first"]][: one["count"]] for one, words in zip(given, found, strict=True))
        row = {"policy": policy, "took_s": took_s, "mean_rows": stats.mean_rows, "merges": stats.merges}
        report.rows.append({"what": "served", **row, "left_early": stats.left_early, "equal": equal, "of": requests})
        report.figure(f"served_equal/{policy}", equal, f"== {requests}", equal == requests)


def main(chosen: argparse.Namespace) -> int:
    """Write the decoder, run it all ways; report."""
    fill_in(chosen, ("rows", 32, 8), ("positions", 1024, 128), ("layers", 1, 1), ("requests", 64, 24))
    decoder = Decoder(chosen.layers, heads=8, kv_heads=8, width=64, slots=chosen.positions, words=512)
    make_folder(CACHE)
    path = decoder.write(CACHE / f"cached_decoder_{chosen.layers}_{chosen.positions}.onnx")
    settings = {"rows": chosen.rows, "positions": chosen.positions, "layers": chosen.layers, "seed": chosen.seed}
    report = Report("bench/caches.py", settings=settings)
    measure_steps(report, decoder, path, chosen.rows)
    measure_served(report, decoder, path, chosen.rows, chosen.requests, chosen.seed)
    return report.finish(chosen.json)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(
        "Iterations of a decoder with a cache of its own: carried, in place, by hand.", "Wall time of a step."
    )
    count = partial(made.add_argument, type=int, metavar="N")
    count("--rows", help="rows of the batch (32)")
    count("--positions", help="positions of the cache (1024)")
    count("--layers", help="layers of the decoder (1)")
    count("--requests", help="rows that are served at random (64)")
    count("--seed", default=1, help="of arrivals and lengths")
    return made


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
