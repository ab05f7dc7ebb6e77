"""The sweep over loops, at its smallest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import loop_models, loop_runs, loop_speed, loops
from lazybatch.core.lane import Lane

MODELS = {model.name: model for model in loop_models.MODELS}


def test_capacities_are_what_the_tables_allow() -> None:
    """Whole batches are bound by their longest row; leaving early lets a loop serve about half as many again."""
    model = MODELS["lstm-cpu"]
    graph, continuous = (loop_runs.capacity_rps(model, policy, 1000) for policy in ("graph", "continuous"))
    whole_ms = 20 + 3 * 64 + 35 * (13 + 0.95 * 64)
    assert graph == pytest.approx(64e3 / whole_ms, rel=0.15)
    assert continuous > 1.4 * graph


def test_loops_of_unrolled_profiles() -> None:
    """The loop's body is one step of the profile, what lies before is its encoder: together as long as the whole."""
    table = MODELS["npu-gnmt"].make_table()
    whole = loop_models.load(loop_models.ROOT / "profiles" / "npu-128x128" / "gnmt.json")
    unrolled = table.node_ns(0, 8) + 18 * table.node_ns(1, 8)
    assert unrolled == pytest.approx(whole.whole_ns(8), rel=0.01)
    las = MODELS["npu-las"].make_table()
    assert las.node_ns(0, 1) > 10 * las.node_ns(1, 1)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_rows_say_what_they_know(model: loop_models.LoopModel) -> None:
    """Known trips are the true ones, others are not told; lengths seen fit every loop, and no row exceeds a maximum."""
    requests, trips = model.requests(list(range(50)), 3), model.trips(50, 3)
    lane = Lane(model.spec())
    for request in requests:
        lane.check(request)
        for number, known in enumerate(model.known):
            assert request.trips[number] == (trips[request.id][number] if known else None)
            assert trips[request.id][number] <= (lane.loops[number].trips_max or 1000)
    assert all(guess is not None for guess in model.spec().lengths)


def test_what_is_sustained_within_a_target() -> None:
    """No more than is sustained under any target, and nothing under one that cannot be kept."""
    model = MODELS["decoder-gpu"]
    load = loop_runs.Load("poisson", 0.5 * loop_runs.capacity_rps(model, "graph", 400), 400)
    assert loop_runs.sustained(model, "lookahead", 1.0, load, (1,)) == 0.0
    assert 3.5 < loop_runs.sustained(model, "lookahead", 1e6, load, (1,)) <= 4.0


def test_the_report_has_rows_and_figures(tmp_path: Path) -> None:
    """Every policy has a row in every cell, and every figure says whether it holds."""
    path = tmp_path / "loops.json"
    loops.main(loops.options().parse_args(["--quick", "--only-ours", "--models", "decoder-gpu", "--json", str(path)]))
    found = json.loads(path.read_text())
    rows = [row for row in found["rows"] if row["what"] == "loop"]
    assert len(rows) == len(loops.LOADS) * (len(loops.POLICIES) - 1)
    assert all(0 < row["mean_ms"] <= row["p99_ms"] for row in rows)
    assert all(isinstance(figure["holds"], bool) for figure in found["figures"].values())
    assert found["provenance"]["settings"]["simulated"] is True


def test_steps_of_a_full_loop_are_timed() -> None:
    """Under overload most steps have many rows, and each has taken some time."""
    model = MODELS["lstm-cpu"]
    requests = model.requests(list(range(0, 400 * 10_000_000, 10_000_000)), 1)
    found = loop_speed.steps_us(model, "continuous", requests, 1)
    assert len(found) > 10
    assert min(found) > 0
