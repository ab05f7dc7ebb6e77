"""The trace writer: what it draws, and that the file can always be read."""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lazybatch.core.graph import NodeGraph
from lazybatch.core.policies import Continuous, GraphBatching, LazyBatching, Policy
from lazybatch.core.request import Request
from lazybatch.core.task import Comparison, Completion, Merge, Reason, Split, Task
from lazybatch.errors import InvalidInput
from lazybatch.metrics import Observers, Outcome
from lazybatch.trace import TraceWriter
from tests.engine.kit import run_dry, stepped
from tests.engine.loop_kit import Given, Rounds, admitted

GRAPH = NodeGraph.chain("m", ["conv", "fc"])


def task(
    sub_batch: int,
    node: int,
    opened: tuple[int, ...] = (),
    rows: int = 1,
    preempted: int | None = None,
    model: str = "m",
) -> Task:
    """One node run."""
    reason = Reason.CONTINUE if preempted is None else Reason.PREEMPT_SLACK
    return Task(model, sub_batch, node, rows, rows, opened, preempted, reason)


def events(path: Path) -> list[dict[str, Any]]:
    """The file, parsed."""
    parsed = json.loads(path.read_text())
    assert isinstance(parsed, list)
    return parsed


def preempt_and_merge(writer: TraceWriter) -> None:
    """Request 1 runs a node, request 2 preempts it, catches up, merges; both finish."""
    first, second = Request(1, "m", 1_000), Request(2, "m", 2_500, deadline_ns=5_000)
    writer.arrived(1_000, first)
    start = task(1, 0, opened=(1,))
    writer.opened(2_000, start)
    writer.dispatched(2_000, 3_001, start)
    writer.arrived(3_001, second)
    catch_up = task(2, 0, opened=(2,), preempted=1)
    writer.opened(3_100, catch_up)
    writer.preempted(3_100, catch_up)
    writer.dispatched(3_100, 4_100, catch_up)
    writer.merged(4_100, Merge("m", target=1, source=2))
    last = task(1, 1, rows=2)
    writer.dispatched(4_200, 6_000, last)
    writer.exited(6_000, first, Outcome.COMPLETED, 2_000)
    writer.exited(6_000, second, Outcome.COMPLETED, 3_100)


def check_format(found: list[dict[str, Any]]) -> None:
    """What the Trace Event Format asks of every event, and that begins and ends pair and nest."""
    bars: dict[tuple[int, int], list[str]] = {}
    spans: Counter[tuple[str, str, str]] = Counter()
    for event in found:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys()
        track = (event["pid"], event["tid"])
        match event["ph"]:
            case "B":
                bars.setdefault(track, []).append(event["name"])
            case "E":
                assert bars[track].pop() == event["name"]
            case "b":
                spans[event["cat"], event["id"], event["name"]] += 1
            case "e":
                spans[event["cat"], event["id"], event["name"]] -= 1
            case "X":
                assert event["dur"] >= 0
                assert len(bars[track]) == 1, "a node runs inside exactly one sub-batch's bar"
            case "i":
                assert event["s"] == "t"
            case "M":
                assert event["args"]
            case phase:
                pytest.fail(f"unexpected phase {phase}")
    assert not any(bars.values())
    assert not any(spans.values())


def test_preemption_and_merge(tmp_path: Path) -> None:
    """A parked sub-batch and its catcher-up lie on two tracks; the merge ends one bar, the exit the other."""
    path = tmp_path / "trace.json"
    with TraceWriter(path, [GRAPH]) as writer:
        preempt_and_merge(writer)
    found = events(path)
    check_format(found)
    slices = [(e["name"], e["tid"], e["ts"], e["dur"], e["args"]["rows"]) for e in found if e["ph"] == "X"]
    assert slices == [("conv", 1, 2, 1.001, 1), ("conv", 2, 3.1, 1, 1), ("fc", 1, 4.2, 1.8, 2)]
    marks = [(e["name"], e["tid"], e["ts"]) for e in found if e["ph"] == "i"]
    assert marks == [
        ("arrival", 0, 1),
        ("arrival", 0, 2.5),
        ("preempted", 1, 3.1),
        ("merged", 1, 4.1),
        ("exit", 1, 6),
        ("exit", 1, 6),
    ]
    reasons = [e["args"]["reason"] for e in found if e["name"] in ("preempted", "conv")]
    assert reasons[1:] == [Reason.PREEMPT_SLACK.value] * 2
    ends = {e["id"]: e["args"] for e in found if e["ph"] == "e" and e["name"].startswith("request")}
    assert ends == {"1": {"outcome": "completed", "late": False}, "2": {"outcome": "completed", "late": True}}
    queued = [(e["id"], e["ts"]) for e in found if e["ph"] == "e" and e["name"] == "queued"]
    assert queued == [("1", 2), ("2", 3.1)]


def test_what_was_compared(tmp_path: Path) -> None:
    """Where the policy compared, the slice and the mark carry both costs and both counts of late rows."""
    path = tmp_path / "trace.json"
    with TraceWriter(path, [GRAPH]) as writer:
        first = task(1, 0, opened=(1,))
        writer.opened(0, first)
        writer.dispatched(0, 5, first)
        second = task(2, 0, opened=(2,), preempted=1)._replace(comparison=Comparison(3_500_000.0, 2e6, 1, 0))
        writer.opened(5, second)
        writer.preempted(5, second)
        writer.dispatched(5, 9, second)
    found = events(path)
    check_format(found)
    compared = {"going_on_row_ms": 3.5, "starting_row_ms": 2.0, "going_on_late_rows": 1, "starting_late_rows": 0}
    shown = [event["args"] for event in found if event["name"] in ("conv", "preempted")]
    assert [compared.items() <= arguments.items() for arguments in shown] == [False, True, True]
    assert "going_on_row_ms" not in shown[0]


def test_tracks_are_reused_and_models_are_processes(tmp_path: Path) -> None:
    """As many tracks as sub-batches were ever open at once, each model in a process of its own name."""
    path = tmp_path / "trace.json"
    with TraceWriter(path) as writer:
        for number, model in enumerate(["m", "m", "other", "m"], start=1):
            request, run = Request(number, model, number), task(number, 0, opened=(number,), model=model)
            writer.arrived(number, request)
            writer.opened(number, run)
            writer.dispatched(number, number + 1, run)
            writer.exited(number + 1, request, Outcome.COMPLETED, number)
    found = events(path)
    check_format(found)
    assert {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"} == {1: "m", 2: "other"}
    assert {(e["pid"], e["tid"]) for e in found if e["ph"] == "X"} == {(1, 1), (2, 1)}
    assert {e["name"] for e in found if e["ph"] == "X"} == {"node 0"}, "without a graph a node is its number"


def test_failed_node_requeues_its_rows(tmp_path: Path) -> None:
    """After a failed node its rows wait again and are opened anew; outcomes and bars still pair."""
    path = tmp_path / "trace.json"
    both = [Request(1, "m", 0), Request(2, "m", 0)]
    with TraceWriter(path, [GRAPH]) as writer:
        for request in both:
            writer.arrived(0, request)
        start = task(1, 0, opened=(1, 2), rows=2)
        writer.opened(1, start)
        writer.dispatched(1, 5, start, failed=True)
        for request in both:
            alone = task(request.id + 1, 0, opened=(request.id,))
            writer.opened(6, alone)
            writer.dispatched(6, 8, alone, failed=request.id == 2)
            writer.exited(9, request, Outcome.COMPLETED if request.id == 1 else Outcome.FAILED, 1)
    found = events(path)
    check_format(found)
    ends = [e["args"]["outcome"] for e in found if e["ph"] == "e" and e["name"].startswith("request")]
    assert ends == ["completed", "failed"]
    assert sum(e["ph"] == "X" and e["args"].get("failed", False) for e in found) == 2


def test_requests_that_never_run(tmp_path: Path) -> None:
    """One cancelled in the queue ends its span; one rejected, never having arrived, is a mark."""
    path = tmp_path / "trace.json"
    with TraceWriter(path) as writer:
        queued = Request(1, "m", 0)
        writer.arrived(0, queued)
        writer.exited(5, queued, Outcome.CANCELLED, None)
        writer.exited(6, Request(2, "m", 6), Outcome.REJECTED, None)
    found = events(path)
    check_format(found)
    assert [e["name"] for e in found if e["ph"] == "i"] == ["arrival", "rejected"]


def test_valid_without_close(tmp_path: Path) -> None:
    """A run that ends abruptly leaves valid JSON with all events up to the last flush."""
    path = tmp_path / "trace.json"
    writer = TraceWriter(path)
    assert events(path) == []
    for number in range(400):
        writer.arrived(number, Request(number, "m", number))
        if number % 100 == 0:
            events(path)
    before = len(events(path))
    assert before >= 1_024
    writer.close()
    writer.close()
    after = events(path)
    check_format(after)
    assert len(after) == writer.events > before


def test_bounded(tmp_path: Path) -> None:
    """Beyond max_events the open bars and spans are ended, the rest is left out and counted, the file still pairs."""
    path = tmp_path / "trace.json"
    with TraceWriter(path, max_events=40) as writer:
        run = task(1, 0, opened=(0,))
        for number in range(100):
            writer.arrived(number, Request(number, "m", number))
            if number == 0:
                writer.opened(0, run)
            writer.dispatched(number, number + 1, run)
    found = events(path)
    check_format(found)
    assert len(found) < 80
    assert writer.events_left_out > 150


def test_a_rider_waits_in_its_own_lane_and_ends_in_that_of_its_batch(tmp_path: Path) -> None:
    """A row taken along in another model's batch: its spans, and the end of its waiting, lie where it came; the mark
    where it left lies on the track of the batch."""
    path = tmp_path / "trace.json"
    own, rider = Request(1, "wide", 0), Request(2, "narrow", 0)
    with TraceWriter(path) as writer:
        for request in (rider, own):
            writer.arrived(0, request)
        both = task(1, 0, opened=(1, 2), rows=2, model="wide")
        writer.opened(10, both)
        writer.dispatched(10, 20, both)
        for request in (own, rider):
            writer.exited(20, request, Outcome.COMPLETED, 10)
    found = events(path)
    pids = {e["args"]["name"]: e["pid"] for e in found if e["name"] == "process_name"}
    spans = [e for e in found if e["ph"] in "be"]
    assert {(e["id"], e["pid"]) for e in spans} == {("1", pids["wide"]), ("2", pids["narrow"])}
    (track,) = {(e["pid"], e["tid"]) for e in found if e["ph"] in "BE"}
    assert {(e["pid"], e["tid"]) for e in found if e["name"] == "exit"} == {track}


def test_unknown_sub_batches_are_ignored(tmp_path: Path) -> None:
    """A writer attached in the middle of a run draws only what it saw begin."""
    path = tmp_path / "trace.json"
    with TraceWriter(path) as writer:
        writer.dispatched(0, 1, task(9, 0))
        writer.merged(1, Merge("m", 8, 9))
        writer.preempted(1, task(9, 0, preempted=8))
        writer.exited(2, Request(1, "m", 0), Outcome.COMPLETED, 0)
    check_format(events(path))


def test_rows_that_leave_a_loop_go_on_as_a_bar_of_their_own(tmp_path: Path) -> None:
    """The split is marked where they leave; both bars end with their last rows."""
    path = tmp_path / "trace.json"
    requests = [Request(k, "m", 0) for k in (1, 2)]
    with TraceWriter(path, [GRAPH]) as writer:
        for request in requests:
            writer.arrived(0, request)
        start = task(1, 0, opened=(1, 2), rows=2)
        writer.opened(10, start)
        writer.dispatched(10, 20, start)
        writer.stepped(20, start, Completion())
        writer.stepped(20, start, Completion(split=Split("m", 1, 5, (2,))))
        writer.stepped(20, task(9, 0), Completion(split=Split("m", 9, 10, (7,))))
        writer.dispatched(20, 30, task(5, 1))
        writer.exited(30, requests[1], Outcome.COMPLETED, 10)
        writer.dispatched(30, 40, task(1, 0))
        writer.exited(40, requests[0], Outcome.COMPLETED, 10)
    found = events(path)
    check_format(found)
    bars = [(e["ph"], e["name"], e["tid"], e["ts"]) for e in found if e["ph"] in "BE"]
    assert bars == [
        ("B", "sub-batch 1", 1, 0.01),
        ("B", "sub-batch 5", 2, 0.02),
        ("E", "sub-batch 5", 2, 0.03),
        ("E", "sub-batch 1", 1, 0.04),
    ]
    (mark,) = [e for e in found if e["name"] == "split"]
    assert (mark["tid"], mark["args"]) == (1, {"target": 5, "requests": [2]})


def test_rows_that_join_a_running_loop_at_once(tmp_path: Path) -> None:
    """No bar of their own: a mark on the one they join; a writer that has not seen that one begin begins it here."""
    path = tmp_path / "trace.json"
    requests = [Request(k, "m", 0) for k in (1, 2, 3)]
    with TraceWriter(path, [GRAPH]) as writer:
        for request in requests:
            writer.arrived(0, request)
        writer.opened(10, task(1, 0, opened=(1,)))
        writer.opened(20, task(1, 0, opened=(2,), rows=2)._replace(joined=2))
        writer.opened(30, task(7, 0, opened=(3,), rows=2)._replace(joined=8))
        for request in requests:
            writer.exited(40, request, Outcome.COMPLETED, 10)
    found = events(path)
    check_format(found)
    assert [(e["name"], e["args"]["requests"]) for e in found if e["ph"] == "B"] == [
        ("sub-batch 1", [1]),
        ("sub-batch 7", [3]),
    ]
    (mark,) = [e for e in found if e["name"] == "joined"]
    assert (mark["tid"], mark["args"]) == (1, {"requests": [2]})


def test_newcomers_that_are_refused_end_no_bar(tmp_path: Path) -> None:
    """They wait again, and are drawn in a bar of their own later; the one they were to join goes on to its end. A bar
    that was begun for them ends with them."""
    path = tmp_path / "trace.json"
    requests = [Request(k, "m", 0) for k in (1, 2, 3)]
    with TraceWriter(path, [GRAPH]) as writer:
        for request in requests:
            writer.arrived(0, request)
        writer.opened(10, task(1, 0, opened=(1,)))
        joining = task(1, 0, opened=(2,), rows=2)._replace(joined=2)
        writer.opened(20, joining)
        writer.refused(25, joining)
        unseen = task(7, 0, opened=(3,), rows=2)._replace(joined=8)
        writer.opened(26, unseen)
        writer.refused(27, unseen)
        writer.dispatched(30, 40, task(1, 0))
        for request in requests[1:]:
            alone = task(10 + request.id, 0, opened=(request.id,))
            writer.opened(50, alone)
            writer.dispatched(50, 60, alone)
        for request in requests:
            writer.exited(70, request, Outcome.COMPLETED, 10)
    found = events(path)
    check_format(found)
    assert [e["args"]["sub_batch"] for e in found if e["ph"] == "X"] == [1, 12, 13]
    assert [e["args"]["requests"] for e in found if e["name"] == "refused"] == [[2], [3]]
    began = {e["args"]["requests"][0]: e["ts"] for e in found if e["ph"] == "B"}
    assert set(began) == {1, 2, 3}


@pytest.mark.parametrize("policy", [Continuous(), LazyBatching(), GraphBatching()])
def test_a_run_with_loops_draws_a_picture_that_holds(tmp_path: Path, policy: Policy) -> None:
    """Joins, splits, merges, a cancelled row and one that fails: every bar and span still ends."""
    path = tmp_path / "trace.json"
    model = Rounds(4, (0, 1), (2, 3), whole=isinstance(policy, GraphBatching))
    with TraceWriter(path, [model.graph]) as writer:
        engine, _ = stepped(model.served(), policy=policy, observers=[writer])
        futures = []
        for k in range(12):
            given = Given(k, (1 + k % 4, 1 + k % 3), bad=(2, 0) if k == 7 else None)
            futures += engine.submit(model.name, admitted(model, given))
            engine.step()
            if k == 5:
                futures[4].cancel()
        run_dry(engine)
        assert engine._driver._watch.errors == 0
    found = events(path)
    check_format(found)
    marks = {e["name"] for e in found if e["ph"] == "i"}
    assert isinstance(policy, GraphBatching) or {"split", "merged"} <= marks


def test_bad_arguments(tmp_path: Path) -> None:
    """A path that cannot be written and a bound below one are named."""
    with pytest.raises(InvalidInput, match="no/such"):
        TraceWriter(tmp_path / "no/such" / "trace.json")
    with pytest.raises(InvalidInput, match="max_events"):
        TraceWriter(tmp_path / "trace.json", max_events=0)


def arrivals(observers: Observers, count: int) -> None:
    """So many requests arrive, one per nanosecond."""
    for number in range(count):
        observers.arrived(number, Request(number, "m", number))


@contextmanager
def files_of(most_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond that: writing fails as on a full disk, after a part of the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_is_reported_once_and_at_the_end(tmp_path: Path) -> None:
    """When writing fails the run goes on: one counted error, then silence; the file ends with what came before, and
    closing says why."""
    path = tmp_path / "trace.json"
    writer = TraceWriter(path)
    watching = Observers([writer])
    with files_of(100_000):
        arrivals(watching, 2_000)
        assert watching.errors == 1
        assert 256 <= len(events(path)) < 1_500
        with pytest.raises(InvalidInput, match=r"cannot write the trace '.*trace\.json': File too large"):
            writer.close()
    writer.close()
    assert len(events(path)) % 256 == 0


def test_a_failure_when_closing_hides_none_of_the_run(tmp_path: Path) -> None:
    """As a context manager: the last block fails too, unless the run has failed already: that error is the one."""
    with files_of(100), pytest.raises(InvalidInput, match="File too large"), TraceWriter(tmp_path / "a") as writer:
        arrivals(Observers([writer]), 10)

    def run_that_fails() -> None:
        with TraceWriter(tmp_path / "b") as writer:
            arrivals(Observers([writer]), 10)
            raise KeyError("of the run")

    with files_of(100), pytest.raises(KeyError, match="of the run"):
        run_that_fails()
    assert events(tmp_path / "a") == events(tmp_path / "b") == []


def test_places_that_hold_no_trace_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe, by its path or as an open one: its end cannot be rewritten. A device that is full."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="a pipe cannot be rewritten at its end, a file can"):
        TraceWriter(tmp_path / "pipe")
    reading, writing = os.pipe()
    try:
        with pytest.raises(InvalidInput, match="a pipe cannot be rewritten"):
            TraceWriter(f"/dev/fd/{writing}")
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(InvalidInput, match="cannot write the trace '/dev/full': No space left on device"):
        TraceWriter("/dev/full")


def test_a_trace_that_is_cut_off_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a full file leaves out is told in the log when it is closed; one that holds all says nothing."""
    with TraceWriter(tmp_path / "whole.json") as writer:
        arrivals(Observers([writer]), 10)
    assert not caplog.records
    with TraceWriter(tmp_path / "cut.json", max_events=40) as writer:
        arrivals(Observers([writer]), 100)
    (record,) = caplog.records
    assert "cut.json" in record.getMessage()
    assert "what came later is left out" in record.getMessage()
