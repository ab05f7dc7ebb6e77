"""Stages at work: states change places instead of moving, caches are written in place, rows fail or are cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lazybatch as lb
from lazybatch.errors import ExecutionError, InvariantError
from lazybatch.executors.program.model import ProgramModel
from lazybatch.program import Append, Carry, Program, Repeat, Stage
from tests.executors.program import bodies, torch_bodies
from tests.executors.program.programs import matches, plain


def alone(name: str, path: Path | Any, loop: Repeat, outputs: dict[str, str], **options: Any) -> ProgramModel:
    """A program of one loop."""
    inputs = options.pop("inputs", {})
    body: Any = lb.load(path, cache=False, **options)
    stage = Stage("step", body, inputs, loop)
    return ProgramModel(Program(name, (stage,), outputs), {"step": body})


def counting(folder: Path, **options: Any) -> ProgramModel:
    """The counter, from 0."""
    loop = Repeat(carry={"n": "n_next"}, done="finished", trips_max=5, collect=("square",), **options)
    path = bodies.counter(folder / "counter.onnx")
    return alone("count", path, loop, {"squares": "step.square"}, inputs={"target": "to"})


def test_stepping_back_moves_no_state(tmp_path: Path) -> None:
    """What a body writes is what it reads next: the two memories change places, and every binding is made once."""
    loop = Repeat(carry={"s": "s_next"}, each={"x": "audio"}, collect=("y",))
    model = alone("speech", bodies.lstm(tmp_path / "lstm.onnx"), loop, {"s": "step.s"})
    executor = model.executor(max_batch_size=4)
    executor.open(0, {k: model.admit({"audio": np.ones((9, 4), np.float32) * k}) for k in range(3)}, 3)
    chain: Any = executor._stages[0].chain
    state = chain.state(0)
    read: list[int] = []
    written: list[int] = []
    frames = set()
    for _ in range(6):
        read.append(chain.store.view(state, "s").ctypes.data)
        before = chain.store.view(state, "s_next").ctypes.data
        executor.run(0, 0)
        assert chain.store.view(state, "s").ctypes.data == before
        written.append(before)
        frames.add(id(state.frame))
    assert read == [read[0], written[0]] * 3
    assert len(set(read)) == 2
    assert len(frames) == 2
    assert all(frame.steps[0] is not None for frame in (state.frame, state.frame.turned))


def test_a_cache_is_written_in_place(tmp_path: Path) -> None:
    """One slice per row and step, at the row's own position; nothing else of the cache changes, or moves."""
    room = 5
    loop = Repeat(
        carry={"v": Carry("v_next", "v"), "cache": Append("slice", 1, room)},
        done="finished",
        trips_max=room,
        collect=("slice",),
    )
    model = alone("heads", bodies.heads(tmp_path / "heads.onnx", room), loop, {"cache": "step.cache"})
    executor = model.executor(max_batch_size=4)
    rows = {k: {"v": np.full((2, 3), 90 + k)} for k in range(3)}
    executor.open(0, {0: model.admit(rows[0])}, 1)
    executor.run(0, 0)
    executor.open(1, {k: model.admit(rows[k]) for k in (1, 2)}, 2)
    executor.merge(0, 1)
    chain: Any = executor._stages[0].chain
    state = chain.state(0)
    place = chain.store.view(state, "cache").ctypes.data
    for _ in range(2):
        before = np.array(chain.store.view(state, "cache"))
        positions = dict(zip(state.requests, state.tally.position.tolist(), strict=True))
        fresh = state.tally.fresh.copy()
        executor.run(0, 0)
        after = chain.store.view(state, "cache")
        assert after.ctypes.data == place
        before[fresh] = 0
        changed = {(row, k) for row, _, k, _ in np.argwhere(before != after).tolist()}
        assert changed == {(row, positions[request]) for row, request in enumerate(state.requests)}


def test_a_torch_cache_is_written_in_place() -> None:
    """So it is on torch; and rows that join are put behind those that are there, where there is room for them."""
    room = 6
    loop = Repeat(
        carry={"h": Carry("h_next", "h"), "keys": Append("key", 1, room)},
        iteration="position",
        done="finished",
        trips_max=room,
    )
    body = torch_bodies.CacheStep(room).eval()
    example = torch_bodies.cache_example(room)
    model = alone("cache", body, loop, {"keys": "step.keys"}, example_inputs=example, preempt_within=60.0)
    executor = model.executor(max_batch_size=8)
    row = {"h": np.full(torch_bodies.HIDDEN, -1, np.float32)}
    executor.open(0, {0: model.admit(row), 1: model.admit(row)}, 2)
    executor.run(0, 0)
    chain: Any = executor._stages[0].chain
    state = chain.state(0)

    def place() -> int:
        value: torch.Tensor = state.values["keys"]
        return value.data_ptr()

    first = place()
    executor.run(0, 0)
    assert place() == first
    for newcomer in (2, 3):
        executor.open(newcomer, {newcomer: model.admit(row)}, 1)
        executor.merge(0, newcomer)
        executor.run(0, 0)
        if newcomer == 2:
            grown = place()
    assert place() == grown
    executor.discard(0)


@pytest.mark.parametrize("company", [False, True])
def test_a_state_that_shows_a_torch_cache(company: bool) -> None:
    """It is the cache as it was when the node ran, without the slice that is written afterwards: alone, and where the
    cache has room for more rows than there are."""
    room = 4
    loop = Repeat(
        carry={"n": Carry("n_next", "n"), "keys": Append("key", 0, room), "seen": Carry("seen_next")},
        trips="steps",
        trips_max=room,
        collect=("seen_next",),
    )
    body, example = torch_bodies.LateStep().eval(), torch_bodies.late_example(room)
    outputs = {"n": "step.n", "seen": "step.seen", "each": "step.seen_next"}
    model = alone("late", body, loop, outputs, example_inputs=example)
    assert model.joinable
    executor = model.executor(max_batch_size=8)
    rows = {k: {"n": np.array(10 + k), "steps": np.array(room - k)} for k in range(3)}
    executor.open(0, {0: model.admit(rows[0])}, 1)
    if company:
        for k in (1, 2):
            executor.open(k, {k: model.admit(rows[k])}, 1)
            executor.merge(0, k)
    results = {}
    for _ in range(room):
        for request in executor.run(0, 0):
            if request:
                results.update(executor.leave(0, [request]))
    results.update(executor.close(0))
    assert len(results) == (3 if company else 1)
    for request, result in results.items():
        matches(result, plain(model, rows[request]))


def test_a_row_whose_step_fails_is_named(tmp_path: Path) -> None:
    """The error says which stage; what is thrown away leaves others whole, and the same rows can be run again."""
    loop = Repeat(carry={"n": Carry("n_next", "n")}, trips="steps", trips_max=9, collect=("value",))
    model = alone("frail", bodies.frail(tmp_path / "frail.onnx"), loop, {"value": "step.value"})
    executor = model.executor(max_batch_size=4)
    rows = {k: {"n": np.array(n), "steps": np.array(3)} for k, n in enumerate((0, 4, 1))}
    admitted = {k: model.admit(row) for k, row in rows.items()}
    executor.open(0, admitted, 3)
    executor.open(1, {7: admitted[0]}, 1)
    executor.run(0, 0)
    with pytest.raises(ExecutionError, match=r"stage 'step': node .* failed"):
        executor.run(0, 0)
    executor.discard(0)
    executor.discard(0)
    for request in (0, 2):
        executor.open(2, {request: admitted[request]}, 1)
        for _ in range(3):
            executor.run(2, 0)
        matches(executor.close(2)[request], plain(model, rows[request]))
    for _ in range(3):
        executor.run(1, 0)
    matches(executor.close(1)[7], plain(model, rows[0]))
    executor.shutdown()


@pytest.mark.parametrize("at_max", ["truncate", "error"])
def test_rows_that_are_cut_off(tmp_path: Path, at_max: Any) -> None:
    """A row that is not done at the maximum is marked, or is an error naming stage and maximum; its mates are not."""
    model = counting(tmp_path, at_max=at_max)
    executor = model.executor(max_batch_size=4)
    executor.open(0, {k: model.admit({"to": np.array(to)}) for k, to in enumerate((5, 6))}, 2)
    found = [executor.run(0, 0) for _ in range(5)]
    assert found == [[], [], [], [], [0]]
    done, cut = executor.close(0).values()
    assert (done.trips, done.truncated) == ((5,), False)
    if at_max == "error":
        assert isinstance(cut, ExecutionError)
        assert str(cut) == "stage 'step': the row is not done after 5 iterations, the most it may make"
    else:
        assert (cut.trips, cut.truncated) == ((5,), True)
        assert len(cut["squares"]) == 5


def test_calls_that_break_the_contract(tmp_path: Path) -> None:
    """Each is an `InvariantError` and changes nothing."""
    model = counting(tmp_path)
    executor = model.executor(max_batch_size=2)
    row = model.admit({"to": np.array(2)})
    executor.open(0, {0: row, 1: model.admit({"to": np.array(4)})}, 2)
    executor.run(0, 0)
    for call in (
        lambda: executor.open(0, {5: row}, 1),
        lambda: executor.open(1, {}, 1),
        lambda: executor.open(1, {5: row, 6: row, 7: row}, 3),
        lambda: executor.leave(0, [0]),
        lambda: executor.split(0, 1, [0]),
        lambda: executor.close(0),
        lambda: executor.evict(0, [0, 1]),
    ):
        with pytest.raises(InvariantError):
            call()
    assert executor.run(0, 0) == [0]
    assert executor.leave(0, [0])[0].trips == (2,)
    for _ in range(2):
        executor.run(0, 0)
    assert executor.close(0)[1].trips == (4,)


def test_rows_that_cannot_be_joined_go_round_alone(tmp_path: Path) -> None:
    """A body whose rows look at each other: the reason names the stage, rows are served one at a time, and right."""
    loop = Repeat(carry={"h": Carry("h_next", "h")}, trips="steps", trips_max=9)
    model = alone("mixing", bodies.mixing(tmp_path / "mixing.onnx"), loop, {"h": "step.h"})
    assert not model.joinable
    assert model.reason is not None
    assert model.reason.startswith("stage 'step': ")
    executor = model.executor(max_batch_size=8)
    rows = {k: {"h": np.array([k, -k], np.float32), "steps": np.array(k)} for k in (1, 4)}
    for request, row in rows.items():
        executor.open(request, {request: model.admit(row)}, 1)
    with pytest.raises(InvariantError):
        executor.open(9, {k: model.admit(row) for k, row in rows.items()}, 2)
    for request, row in rows.items():
        for _ in range(request):
            executor.run(request, 0)
        got = executor.close(request)[request]
        assert np.array_equal(got["h"].reshape(2), plain(model, row)["h"].reshape(2))


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_state_that_is_what_another_was(tmp_path: Path, names: str) -> None:
    """A body may return an input as it is, for another state: in whichever order the states are declared."""
    carry = {"a": Carry("b", "a"), "b": Carry("n", "b")}
    loop = Repeat(carry={name: carry[name] for name in names}, trips="steps", trips_max=9)
    model = alone("shifting", bodies.shifting(tmp_path / "s.onnx"), loop, {"a": "step.a", "b": "step.b"})
    assert not model.joinable
    executor = model.executor(max_batch_size=1)
    row = {"a": np.array([1, 2], np.float32), "b": np.array([3, 5], np.float32), "steps": np.array(4)}
    executor.open(0, {0: model.admit(row)}, 1)
    for _ in range(4):
        executor.run(0, 0)
    got, want = executor.close(0)[0], plain(model, row)
    for name in names:
        assert np.array_equal(got[name].reshape(2), want[name].reshape(2)), name


def test_rows_that_cannot_be_joined_have_shapes_of_their_own(tmp_path: Path) -> None:
    """What such a row collects may have another shape than what others did; but its own steps are stacked."""
    loop = Repeat(carry={"h": Carry("h_next", "h")}, trips="steps", collect=("places",))
    model = alone("found", bodies.found(tmp_path / "found.onnx"), loop, {"places": "step.places"})
    assert not model.joinable
    executor = model.executor(max_batch_size=4)
    for request, (values, steps) in enumerate((([0, 0, 3, 0], 2), ([2, 2, 0, 2], 1), ([9, 9, 9, 9], 3))):
        row = {"h": np.array(values, np.float32), "steps": np.array(steps)}
        executor.open(request, {request: model.admit(row)}, 1)
        for _ in range(steps):
            executor.run(request, 0)
        matches(executor.close(request)[request], plain(model, row))
    executor.open(9, {9: model.admit({"h": np.array([1, 2, 0, 0], np.float32), "steps": np.array(2)})}, 1)
    executor.run(9, 0)
    with pytest.raises(ExecutionError, match=r"stage 'step': output 'places' is collected: a step has the shape"):
        executor.run(9, 0)
    executor.shutdown()


def test_memory_is_planned(tmp_path: Path) -> None:
    """States, room for what grows and what is collected, for the maximum batch, twice: one runs, one is parked."""
    loop = Repeat(
        carry={"v": Carry("v_next", "v"), "cache": Append("slice", 1, 50)},
        done="finished",
        trips_max=50,
        collect=("slice",),
    )
    model = alone("heads", bodies.heads(tmp_path / "heads.onnx", 50), loop, {"cache": "step.cache"})
    small, large = (model.executor(max_batch_size=rows).memory() for rows in (2, 64))
    cache = 2 * 50 * 3 * 8
    assert 2 * 64 * cache <= large.buffers_bytes <= 2 * 64 * cache * 1.5
    assert small.buffers_bytes < large.buffers_bytes / 16
    assert large.total_bytes >= large.buffers_bytes


def test_what_is_over_is_let_go_of(tmp_path: Path) -> None:
    """A sub-batch that ended or was merged away is not held for what it emitted; after shutdown nothing is."""
    model = counting(tmp_path)
    executor = model.executor(max_batch_size=4)
    stage: Any = executor._stages[0]
    for request in (0, 1):
        executor.open(request, {request: model.admit({"to": np.array(3)})}, 1)
    executor.run(1, 0)
    assert stage._emitted is not None
    executor.discard(0)
    assert stage._emitted is not None
    executor.discard(1)
    assert stage._emitted is None
    for request in (2, 3):
        executor.open(request, {request: model.admit({"to": np.array(3)})}, 1)
    executor.run(3, 0)
    executor.merge(2, 3)
    assert stage._emitted is None
    executor.run(2, 0)
    assert executor.memory().buffers_bytes > 0
    executor.shutdown()
    assert stage._emitted is None
    assert executor.memory().buffers_bytes == 0


@pytest.mark.parametrize("looped", [False, True])
def test_a_value_that_rows_share_may_decide_shapes(tmp_path: Path, looped: bool) -> None:
    """Memory and tapes are for rows that share the value, too: others make more, or less, of the same shapes."""
    loop = Repeat(carry={"x": Carry("x_next", "x")}, trips="steps", trips_max=4, collect=("values",))
    body: Any = lb.load(bodies.largest(tmp_path / "largest.onnx"), cache=False, batch_axes={"x": 0, "k": None})
    stage = Stage("step", body, {"k": "k"} if looped else {"x": "x", "k": "k"}, loop if looped else None)
    model = ProgramModel(Program("largest", (stage,), {"values": "step.values"}), {"step": body})
    assert model.joinable
    executor = model.executor(max_batch_size=4)
    steps = {"steps": np.array(2)} if looped else {}
    for k in (3, 5, 3, 1):
        rows = {n: {"x": np.array([4, 1, n, 9, 2, 7]), "k": np.array([k]), **steps} for n in range(3)}
        executor.open(0, {n: model.admit(row) for n, row in rows.items()}, 3)
        for _ in range(2 if looped else 1):
            executor.run(0, 0)
        for n, result in executor.close(0).items():
            matches(result, plain(model, rows[n]))
    executor.shutdown()
