"""Simulation against reality: what the engine adds is found again where it is known, and the script end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import reality
from bench.common import Report, run_script
from bench.measure_overheads import Overheads, Watched, fit
from lazybatch.core.latency import LatencyTable
from lazybatch.core.request import Request
from lazybatch.core.task import Reason, Task
from lazybatch.metrics import Outcome

TOY = LatencyTable.uniform("toy", 2, 4_000_000, 1_000_000, (1, 2, 4))
ADDED = Overheads(wake_ns=300_000, dispatch_ns=50_000, batch_ns=100_000, row_ns=20_000, answer_ns=70_000)


def _played(batches: list[tuple[int, int]]) -> tuple[Watched, list[int]]:
    """What an engine with exactly these overheads would show. batches: (rows, idle time before it)."""
    watched, latencies_ns = Watched(), []
    dense = TOY.dense_ns(4)
    now, number = 1_000_000, 0
    for rows, idle_ns in batches:
        came_ns = now + idle_ns if idle_ns else now - 1
        ids = tuple(range(number, number + rows))
        number += rows
        for request_id in ids:
            watched.arrived(came_ns, Request(request_id, "toy", came_ns))
        now = came_ns + ADDED.wake_ns if idle_ns else now
        for node in range(2):
            opened = ids if node == 0 else ()
            around = ADDED.dispatch_ns + (ADDED.batch_ns + ADDED.row_ns * rows if opened else 0)
            start = now + around
            now = start + dense[node][rows]
            watched.dispatched(start, now, Task("toy", number, node, rows, rows, opened, None, Reason.CONTINUE))
        for request_id in ids:
            watched.exited(now, Request(request_id, "toy", came_ns), Outcome.COMPLETED, 0)
            latencies_ns.append(now - came_ns + ADDED.answer_ns)
    return watched, latencies_ns


def test_known_overheads_are_found() -> None:
    """From a run whose constants are known, over busy and idle times and several sizes, the fit returns them."""
    sizes = [(rows, idle) for rows in (1, 2, 3, 4) for idle in (0, 5_000_000, 0)] * 10
    watched, latencies_ns = _played(sizes)
    found = fit(watched, TOY, 4, latencies_ns)
    assert found.as_us() == pytest.approx(ADDED.as_us(), abs=0.01)


def test_an_engine_that_was_never_busy() -> None:
    """Where every batch found the engine idle, waking is part of what starting a batch takes; the sums are right."""
    watched, latencies_ns = _played([(rows, 5_000_000) for rows in (1, 2, 3, 4)] * 5)
    found = fit(watched, TOY, 4, latencies_ns)
    assert found.wake_ns == 0
    assert found.batch_ns == pytest.approx(ADDED.batch_ns + ADDED.wake_ns, abs=10)
    assert found.dispatch_ns == pytest.approx(ADDED.dispatch_ns, abs=10)


def test_a_table_with_overheads() -> None:
    """Every node pays for its dispatch, the first one for batch and rows too, at every size; the names stay."""
    over = ADDED.over(TOY, 4)
    assert over.nodes == TOY.nodes
    assert over.batch_sizes == (1, 2, 3, 4)
    for rows in (1, 2, 3, 4):
        assert over.node_ns(0, rows) == TOY.node_ns(0, rows) + 150_000 + 20_000 * rows
        assert over.node_ns(1, rows) == TOY.node_ns(1, rows) + 50_000
    tiny = Overheads(0, -(10**9), 0, 0, 0).over(TOY, 4)
    assert tiny.whole_ns(1) == 2_000


def test_the_warm_up_is_forgotten() -> None:
    """After `clear` only later dispatches count."""
    watched, _ = _played([(1, 0)])
    watched.clear()
    assert watched.periods == []
    assert watched.ends_ns == []


def test_an_unfit_machine_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The constants are shown per policy; a machine that changed its pace, and late clients, are noted."""
    run = {"what": "run", "model": "m", "policy": "p", "overheads": ADDED.as_us(), "submit_lag_p99_ms": 0.1}
    steady = {"what": "drift", "model": "m", "seed": 1, "pace": 1.01}
    reality.explain(Report("test", rows=[run, steady]))
    shown = capsys.readouterr().out
    assert "m under p, microseconds besides the table: wake 300, dispatch 50, batch 100, row 20, answer 70" in shown
    assert "note" not in shown
    reality.explain(Report("test", rows=[run | {"submit_lag_p99_ms": 9.0}, steady | {"pace": 1.3}]))
    shown = capsys.readouterr().out
    assert "1.30 times as long" in shown
    assert "9.0 ms late" in shown


def test_the_script(tmp_path: Path) -> None:
    """A trained model on both sides: the same calls, a figure for mean and p99 of each policy and load."""
    file = tmp_path / "reality.json"
    arguments = ["ppocr-cls", "--load", "0.2", "--policy", "graph", "lookahead", "--rounds", "1", "--seconds", "0.2"]
    arguments += ["--requests", "20", "--profile-seconds", "0.2", "--max-batch-size", "2", "--json", str(file)]
    reality.main(reality.options().parse_args(arguments))
    document = json.loads(file.read_text())
    assert set(document["figures"]) == {
        f"{of}_off/{side}/ppocr-cls/{policy}/load0.2"
        for of in ("mean", "p99")
        for side in ("before", "same_run", "paced")
        for policy in ("graph:0", "lookahead")
    }
    runs = [row for row in document["rows"] if row["what"] == "run"]
    assert len(runs) == 2
    for row in runs:
        assert min(row[f"{side}_mean_ms"] for side in ("live", "before", "same_run", "paced", "table")) > 0
        assert row["same_run_mean_ms"] <= row["same_run_p99_ms"]
    assert document["provenance"]["settings"]["rounds"] == 1


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nothing"], "model 'nothing'"),
        (["--load", "1.2"], "--load"),
        (["--rounds", "0"], "--rounds"),
        (["--requests", "1"], "--requests"),
        (["--seconds", "-1"], "--seconds"),
        (["--policy", "magic"], "unknown policy"),
    ],
)
def test_bad_input(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and status 2."""
    assert run_script(reality.main, reality.options().parse_args(arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert culprit in error
    assert len(error.splitlines()) == 1
