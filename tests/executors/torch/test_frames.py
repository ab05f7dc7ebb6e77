"""Recorded nodes on a CPU: the same frames as on a GPU, with a recorder that runs again what it recorded."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lazybatch.errors import ExecutionError
from lazybatch.executors.torch import frames as torch_frames
from lazybatch.executors.torch.model import TorchModel
from lazybatch.executors.torch.piece import Device
from tests.executors.torch.test_executor import ROWS, check, expected, walk
from tests.serving import interleaved
from tests.torch_modules import CASES, Case, fine, sound


class Rerun:
    """Records by keeping the call: a replay makes it again and copies what it makes to where it first was."""

    def __init__(self, refuses: Callable[[], bool] = lambda: False) -> None:
        self.replays = self.records = 0
        self._refuses = refuses

    def pool(self) -> list[Tensor]:
        """See `torch_frames.Recorder`."""
        return []

    def record(self, call: Callable[[], Sequence[Any]], pool: list[Tensor]) -> tuple[Sequence[Any], Callable[[], None]]:
        """See `torch_frames.Recorder`."""
        if self._refuses():
            raise RuntimeError("operation not permitted when stream is capturing\nmore text")
        self.records += 1
        made = call()
        return made, lambda: self._again(made, call)

    def _again(self, made: Sequence[Any], call: Callable[[], Sequence[Any]]) -> None:
        self.replays += 1
        with torch.inference_mode():
            for place, value in zip(made, call(), strict=True):
                if isinstance(place, Tensor):
                    place.copy_(value)
                else:
                    assert place == value


class Scribble(Rerun):
    """Hands out memory as a GPU's allocator does for recordings: what one is done with, or what was let go of, serves
    the next of its pool. A replay first writes nonsense over all that its node took besides its results."""

    def record(self, call: Callable[[], Sequence[Any]], pool: list[Tensor]) -> tuple[Sequence[Any], Callable[[], None]]:
        """See `torch_frames.Recorder`."""
        self.records += 1
        made: list[Any] = []
        places: list[Any] = []
        for value in call():
            if not isinstance(value, Tensor):
                made.append(value)
                places.append(value)
                continue
            block = _block(pool, value.nbytes)
            one, same = (
                torch.frombuffer(block.numpy(), dtype=value.dtype, count=value.numel()).as_strided(
                    value.shape, value.stride()
                )
                for _ in range(2)
            )
            weakref.finalize(one, pool.append, block)
            made.append(one)
            places.append(same)
        scratch = [_block(pool, place.nbytes) for place in places if isinstance(place, Tensor)]
        pool += scratch

        def replay() -> None:
            for block in scratch:
                block.fill_(255)
            self._again(places, call)

        return made, replay


def _block(pool: list[Tensor], nbytes: int) -> Tensor:
    """The smallest free memory that is enough, or new memory."""
    fitting = [k for k, block in enumerate(pool) if block.nbytes >= nbytes]
    if fitting:
        return pool.pop(min(fitting, key=lambda k: pool[k].nbytes))
    return torch.from_numpy(np.empty(max(nbytes, 1), np.uint8))


@pytest.fixture
def recorder() -> Rerun:
    """A recorder that records everything."""
    return Rerun()


@pytest.fixture
def recorded(recorder: Rerun) -> Iterator[Callable[[str], TorchModel]]:
    """Models whose executors replay nodes."""
    touched: list[TorchModel] = []

    def make(name: str) -> TorchModel:
        model = fine(name)
        model.recorder = recorder
        touched.append(model)
        return model

    yield make
    for model in touched:
        model.recorder = None


def serve(executor: Any, model: TorchModel, sub_batch: int, rows: Iterable[Any], wanted: Sequence[Any]) -> None:
    """Rows in one sub-batch from the first node to the last, each checked."""
    admitted = dict(enumerate(map(model.admit, rows)))
    executor.open(sub_batch, admitted, len(admitted))
    walk(executor, model, sub_batch)
    for k, got in executor.close(sub_batch).items():
        check(got, wanted[k])


@CASES
def test_one_batch(case: Case, recorded: Callable[[str], TorchModel], recorder: Rerun) -> None:
    """All rows in one sub-batch, every node from its recording, at the latest when such rows come again."""
    model, batch = recorded(case.name), case.batch(ROWS, seed=3)
    executor, wanted = model.executor(max_batch_size=ROWS), expected(case, model, batch)
    before = recorder.replays
    for sub_batch in range(2):
        serve(executor, model, sub_batch, case.rows(batch, ROWS), wanted)
    assert recorder.replays >= before + len(model.graph)
    executor.shutdown()


@CASES
@pytest.mark.parametrize("seed", range(3))
def test_parked_merged_and_thinned_out(case: Case, seed: int, recorded: Callable[[str], TorchModel]) -> None:
    """Sub-batches of equal and different sizes take turns at random, meet, and lose rows: frames change owners."""
    model, batch = recorded(case.name), case.batch(ROWS, seed=seed + 10)
    answers, _ = interleaved(model, list(case.rows(batch, ROWS)), seed)
    for got, want in zip(answers, expected(case, model, batch), strict=True):
        if got is not None:
            check(got, want)


def test_parked_rows_outlast_larger_batches() -> None:
    """Many rows are recorded first, so that few rows could be given memory which those are done with; these are parked
    at every node in turn while many rows run again."""
    case, model = sound("residual"), fine("residual")
    batch = case.batch(ROWS, seed=6)
    rows, wanted = [model.admit(row) for row in case.rows(batch, ROWS)], expected(case, model, batch)
    model.recorder = Scribble()
    try:
        executor = model.executor(max_batch_size=ROWS)
        for parked_at in range(len(model.graph) + 1):
            executor.open(0, {k: rows[k] for k in range(2)}, 2)
            for node in range(parked_at):
                executor.run(0, node)
            executor.open(1, dict(enumerate(rows)), ROWS)
            walk(executor, model, 1)
            executor.discard(1)
            for node in range(parked_at, len(model.graph)):
                executor.run(0, node)
            for k, got in executor.close(0).items():
                check(got, wanted[k])
        executor.shutdown()
    finally:
        model.recorder = None


@CASES
@pytest.mark.parametrize("seed", range(3))
def test_nobody_writes_over_values_that_wait(case: Case, seed: int) -> None:
    """What a recording takes for itself is never where another sub-batch's values lie, or its own that are alive:
    neither those of another number of rows, nor where later nodes were recorded before earlier ones."""
    model, batch = fine(case.name), case.batch(ROWS, seed=seed + 20)
    model.recorder = Scribble()
    try:
        answers, _ = interleaved(model, list(case.rows(batch, ROWS)), seed)
    finally:
        model.recorder = None
    for got, want in zip(answers, expected(case, model, batch), strict=True):
        if got is not None:
            check(got, want)


def test_two_sub_batches_of_one_size_share_a_frame(recorded: Callable[[str], TorchModel], recorder: Rerun) -> None:
    """Node by node in turn: each recording is made once, values move out and in, and both get their own answers."""
    case, model = sound("residual"), recorded("residual")
    batch = case.batch(ROWS, seed=1)
    rows, wanted = [model.admit(row) for row in case.rows(batch, ROWS)], expected(case, model, batch)
    executor = model.executor(max_batch_size=4)
    before = recorder.records
    for sub_batch in (0, 1):
        executor.open(sub_batch, {k: rows[k] for k in range(3 * sub_batch, 3 * sub_batch + 3)}, 3)
    for node in range(len(model.graph)):
        for sub_batch in (0, 1):
            executor.run(sub_batch, node)
    answers = executor.close(0) | executor.close(1)
    for k, got in answers.items():
        check(got, wanted[k])
    assert recorder.records == before + len(model.graph)
    executor.shutdown()


def test_frames_that_are_let_go_leave_values_behind(
    recorded: Callable[[str], TorchModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one frame, every sub-batch of another size drives the last one out."""
    monkeypatch.setattr(torch_frames, "FRAMES_MAX", 1)
    case, model = sound("residual"), recorded("residual")
    batch = case.batch(ROWS, seed=2)
    answers, _ = interleaved(model, list(case.rows(batch, ROWS)), 5)
    for got, want in zip(answers, expected(case, model, batch), strict=True):
        if got is not None:
            check(got, want)


def test_what_comes_only_once_is_not_recorded(
    recorded: Callable[[str], TorchModel], recorder: Rerun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of its own per request, which is a part of the signature: only one that comes again is given memory, in
    whatever number of rows; and one that came long ago is new."""
    monkeypatch.setattr(torch_frames, "SIGNATURES_MAX", 2)
    case, model = sound("several"), recorded("several")
    executor = model.executor(max_batch_size=ROWS)
    before, number = recorder.records, itertools.count()

    def records(own: int, rows: int = ROWS) -> int:
        """Nodes recorded since the beginning, once such rows have run."""
        batch = case.batch(ROWS, seed=8)
        batch["table"] = batch["table"] + own
        given = itertools.islice(case.rows(batch, ROWS), rows)
        serve(executor, model, next(number), given, expected(case, model, batch))
        return recorder.records - before

    nodes = len(model.graph)
    assert [records(own) for own in range(4)] == [0] * 4
    assert [records(3), records(3), records(3, rows=2)] == [nodes, nodes, 2 * nodes]
    assert [records(0), records(0)] == [2 * nodes, 3 * nodes]
    executor.shutdown()


def test_what_cannot_be_recorded_is_run_as_it_is() -> None:
    """A recorder that refuses: the reason is kept, in one line, and the answers are right."""
    case, model = sound("residual"), fine("residual")
    model.recorder = Rerun(refuses=lambda: True)
    try:
        batch = case.batch(ROWS, seed=4)
        executor = model.executor(max_batch_size=ROWS)
        executor.open(0, {k: model.admit(row) for k, row in enumerate(case.rows(batch, ROWS))}, ROWS)
        walk(executor, model, 0)
        for k, got in executor.close(0).items():
            check(got, expected(case, model, batch)[k])
        assert executor.frames is not None
        reasons = set(executor.frames.unrecorded.values())
        assert reasons == {"RuntimeError: operation not permitted when stream is capturing"}
        assert len(executor.frames.unrecorded) == len(model.graph)
    finally:
        model.recorder = None


def test_a_node_that_fails_is_the_nodes_error(recorded: Callable[[str], TorchModel]) -> None:
    """What fails by itself is no reason against recording: it is raised, and the node is recorded for others."""
    model = recorded("residual")
    case = sound("residual")
    rows = list(case.rows(case.batch(ROWS, seed=1), ROWS))
    executor = model.executor(max_batch_size=2)
    for sub_batch in range(2):
        executor.open(sub_batch, {sub_batch: model.admit(rows[0])}, 1)
    state = executor.state(0)
    name = model.partition.pieces[0].inputs[0]
    good = state.values[name]
    state.values[name] = torch.zeros(1, 1, dtype=good.dtype)
    assert executor.frames is not None
    frames = torch_frames.Frames(model.pieces, Rerun())
    assert frames.run(executor.state(1), 0) is None, "the first of its signature"
    with pytest.raises(ExecutionError):
        frames.run(state, 0)
    assert not frames.unrecorded
    state.values[name] = good
    assert frames.run(state, 0) is None, "another shape than the frame was made for"
    assert "one shape" in frames.unrecorded[model.pieces[0].name]
    executor.shutdown()


class Stream:
    """A stream that notes which events were recorded and which were waited for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._events = 0

    def record_event(self) -> Any:
        """An event after all that was asked for."""
        stream, name = self, f"e{self._events}"
        self._events += 1
        self.log.append(f"record {name}")

        class Event:
            def synchronize(self) -> None:
                stream.log.append(f"wait {name}")

        return Event()

    def synchronize(self) -> None:
        """Wait for everything."""
        self.log.append("wait all")


def test_a_gpu_runs_ahead_by_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each node the one before is waited for; whoever measures waits for the node itself."""
    device, stream = Device(torch.device("cpu")), Stream()
    monkeypatch.setattr(device, "_stream", stream)
    for _ in range(3):
        device.follow()
    device.wait()
    assert stream.log == ["record e0", "record e1", "wait e0", "record e2", "wait e1", "wait all"]


def test_measuring_is_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an executor is in step, no node is left running."""
    case, model = sound("residual"), fine("residual")
    batch = case.batch(1, seed=1)
    executor = model.executor(max_batch_size=1)
    waited: list[str] = []
    monkeypatch.setattr(model._device, "wait", lambda: waited.append("this"))
    monkeypatch.setattr(model._device, "follow", lambda: waited.append("the one before"))
    for number in range(2):
        executor.open(number, {number: model.admit(next(iter(case.rows(batch, 1))))}, 1)
        executor.run(number, 0)
        executor.in_step()
    assert waited == ["the one before", "this"]
    assert not executor.runs_ahead, "there is no GPU"
    executor.shutdown()
