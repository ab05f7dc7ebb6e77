"""The benchmark scripts themselves, at their smallest: real parts, real models, small numbers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lazybatch as lb
from bench import load, overhead
from bench.measure_chain import measure_chain
from bench.measure_core import POLICIES, decision_times_ns, measure_policy, measure_simulator
from bench.models import subject
from lazybatch.errors import ExecutionError, InvalidInput, Overloaded


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("models", [1, 3])
def test_every_dispatch_is_timed(policy: str, models: int) -> None:
    """Each request passes all nodes, so there are between nodes * requests / rows and nodes * requests dispatches."""
    times = decision_times_ns(policy, models, requests=50)
    assert 20 * 50 / 16 <= len(times) <= 20 * 50
    assert min(times) > 0


def test_decisions_of_the_default_policy_are_timed() -> None:
    """One row per number of models; fresh decisions are some of all, and none fails."""
    rows = measure_policy(60)
    assert [row["models"] for row in rows] == [1, 4]
    for row in rows:
        assert row["decisions"] > 0
        assert 0 < row["fresh_median_us"] <= row["fresh_p99_us"]
        assert row["policy_failures"] == 0


def test_simulator_rows() -> None:
    """One row per policy, with a rate of dispatches and the batch that explains it."""
    rows = measure_simulator(100)
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["dispatches_per_s"] > 0 for row in rows)
    assert rows[0]["mean_batch"] == 1.0


@pytest.mark.parametrize("name", ["ppocr-cls", pytest.param("ppocr-rec", marks=pytest.mark.slow)])
def test_chain_against_whole(name: str) -> None:
    """A trained model, node by node, gives the whole model's bits at batch 1 and 2, and every time is there."""
    fine = replace(subject(name), cutting={"preempt_within": 1e-9}) if name == "ppocr-cls" else subject(name)
    rows = measure_chain(fine, (1, 2), within_s=0.0)
    assert [row["batch"] for row in rows] == [1, 2]
    for row in rows:
        assert row["bit_identical"]
        assert row["nodes"] > 1
        assert row["chain_ms"] >= row["nodes_ms"] > 0


@pytest.mark.slow
def test_torch_chain_against_whole() -> None:
    """A torch module of the zoo, node by node, gives the module's own bits, and every time is there."""
    from bench.measure_torch import measure_torch

    rows = measure_torch("mobilenetv2", (1, 2), within_s=0.0)
    assert [row["batch"] for row in rows] == [1, 2]
    for row in rows:
        assert row["bit_identical"]
        assert row["nodes"] > 1
        assert row["chain_ms"] > 0


def test_subjects() -> None:
    """A model file gets noise of its own shapes; unknown names and varying shapes are refused by name."""
    target = subject("ppocr-cls")
    rows = target.rows(3)
    assert [row["x"].shape for row in rows] == [(3, 48, 192)] * 3
    assert np.array_equal(rows[2]["x"], target.rows(3)[2]["x"])
    with pytest.raises(InvalidInput, match="'vgg'"):
        subject("vgg")
    with pytest.raises(InvalidInput, match="'x' has varying dimensions"):
        subject(str(target.path))


def test_closed_loop_counts_every_call() -> None:
    """Successes, rejections, errors and other exceptions are counted apart, and add up to what was attempted."""
    answers = iter([None, Overloaded("full"), ExecutionError("node"), ValueError("odd")] * 2)

    def call(rows: object) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    chosen = load.options().parse_args(["--mode", "closed", "--clients", "1", "--calls", "8"])
    row = load.closed_loop(call, [{"x": np.zeros(1)}], chosen).row(rows_per_call=4)
    assert (row["attempted"], row["successful"]) == (8, 2)
    assert (row["rejections"], row["errors"], row["exceptions"]) == (2, 2, 2)
    assert row["rows_per_s"] == pytest.approx(4 * row["calls_per_s"])


def test_no_success_no_percentile() -> None:
    """Percentiles of nothing are null, not zero."""
    row = load.Tally(wall_s=1.0, attempted=1, errors=1).row(1)
    assert row["p50_ms"] is None
    assert row["p99_ms"] is None


def test_load_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Open and closed loop against a trained model: counters agree with calls, under every policy and window."""
    path = tmp_path / "load.json"
    common = ["ppocr-cls", "--quick", "--json", str(path), "--max-batch-size", "4"]
    chosen = load.options().parse_args([*common, "--seconds", "0.3"])
    assert load.main(chosen) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {(row["policy"], row["max_delay_ms"]) for row in rows} == {
        ("serial", None),
        ("graph", 0.0),
        ("graph", 5.0),
        ("lazy", None),
    }
    chosen = load.options().parse_args(
        [*common, "--mode", "closed", "--policy", "lazy", "direct", "--calls", "3", "--clients", "2"]
    )
    assert load.main(chosen) == 0
    rows += json.loads(path.read_text())["rows"]
    for row in rows:
        assert row["attempted"] == row["successful"] > 0
        assert row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        if row["policy"] != "direct":
            assert row["counters"]["completed"] == row["successful"] * row["rows_per_call"]
    assert "holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--clients", "0"], "--clients"),
        (["--load", "-1"], "--load"),
        (["--seconds", "nan"], "--seconds"),
        (["--policy", "direct"], "direct"),
    ],
)
def test_load_refuses_nonsense(arguments: list[str], culprit: str) -> None:
    """Options that cannot be are refused before anything is loaded."""
    with pytest.raises(InvalidInput, match=culprit):
        load.check(load.options().parse_args(arguments))


def test_help_teaches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--help of both scripts shows examples and what the exit status means."""
    monkeypatch.setattr(sys, "argv", ["bench"])
    for module in (overhead, load):
        with pytest.raises(SystemExit):
            module.options().parse_args(["--help"])
        text = capsys.readouterr().out
        assert "examples" in text
        assert "status: 0" in text


def test_core_part_of_overhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's core part names a figure for each policy and for the simulator, whatever their values."""
    path = tmp_path / "o.json"
    monkeypatch.setattr(overhead, "measure_decisions", lambda n: _decisions())
    overhead.main(overhead.options().parse_args(["--quick", "--parts", "core", "--json", str(path)]))
    figures = json.loads(path.read_text())["figures"]
    each = ("decision_median_us", "simulated_dispatches_per_s")
    assert set(figures) == {f"{name}/{policy}" for name in each for policy in POLICIES} | {"lookahead_fresh_median_us"}
    assert figures["decision_median_us/lazy"] == {"value": 16.0, "target": "<= 15 us", "holds": False}


def _decisions() -> list[dict[str, object]]:
    return [{"policy": policy, "models": models, "median_us": 4.0 * models} for policy in POLICIES for models in (1, 4)]


def test_public_names() -> None:
    """The scripts stand on public names of the package."""
    assert callable(lb.load)
    assert callable(lb.profile)
