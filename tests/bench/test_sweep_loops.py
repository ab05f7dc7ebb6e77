"""Sweeps over models with loops: what is known of their rows, capacity, and the script, simulated and live."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lazybatch as lb
from bench import sla_sweep, sweep_runs
from bench.common import run_script
from bench.programs import ProgramFile, served
from bench.sweep_loops import Loops, as_lengths, capacity_rps, commonest, learnt, read_loops
from bench.sweep_options import options
from bench.sweep_runs import Run, Setting
from bench.variants import loop_controls_for, variant, variants
from lazybatch import profiles
from lazybatch.core.graph import Loop
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput
from lazybatch.lengths import Lengths
from lazybatch.table_loops import KEY, TableLoop, described
from tests.small_program import rows, write_program

MS = 1_000_000
TOY = replace(
    LatencyTable.uniform("toy", 2, 4 * MS, MS, (1, 2, 4)),
    provenance={KEY: described([TableLoop(Loop("decoder", 1, 2, trips_max=9), iterations=4)])},
)
SEEN = Loops(Lengths({"decoder": [(n % 5 + 1, n % 7 + 1) for n in range(70)]}))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table in a file."""
    path = tmp_path / "toy.json"
    profiles.save(TOY, path)
    return path


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Lengths that were seen, in a file."""
    path = tmp_path / "lengths.txt"
    path.write_text("".join(f"{n % 7 + 1}\n" for n in range(70)))
    return path


def setting(loops: Loops) -> Setting:
    """What runs share; S(1) is one encoder and the mean number of iterations, 2.5 ms each."""
    made = Setting(TOY, 4, 1000, 1.0, loops=loops)
    return replace(made, capacity_rps=capacity_rps(made.lane(), loops))


def test_targets_count_in_rows_that_go_round() -> None:
    """S(1) is the mean row's, the least that of the shortest."""
    assert setting(SEEN).alone_ms == pytest.approx(2.5 + 4 * 2.5)
    assert setting(SEEN).least_ms == pytest.approx(2.5 + 2.5)
    assert setting(Loops(trips="3")).alone_ms == pytest.approx(2.5 + 3 * 2.5)


def test_capacity_of_whole_batches() -> None:
    """Where all rows go round alike it is that of the largest batch; rows that differ cost more than their mean."""
    assert setting(Loops(trips="4")).capacity_rps == pytest.approx(4e3 / (4 + 4 * 4), rel=0.05)
    assert setting(SEEN).capacity_rps < 0.9 * setting(Loops(trips="4")).capacity_rps


@pytest.mark.parametrize("title", ["graph:0", "continuous", "lazy", "lookahead"])
def test_a_simulated_run(title: str) -> None:
    """Every policy serves all rows, the same ones for the same seed."""
    one = variant(title)
    made = setting(SEEN)
    made = replace(made, loop_controls=loop_controls_for([one], [made.lane()]))
    if one.consults:
        assert set(made.loop_controls) == {"toy"}
        made = replace(made, controls=sla_sweep.controls_for([one], [made.lane()]))
    (row,) = sweep_runs.simulated(made, Run(one, 0.5 * made.capacity_rps, 1, 100, (200.0,)))
    assert row["answered"] == row["judged"] == 90
    assert row["policy_failures"] == 0
    assert row == sweep_runs.simulated(made, Run(one, 0.5 * made.capacity_rps, 1, 100, (200.0,)))[0]


def test_nobody_asks_for_controls() -> None:
    """Policies that do not consult them get none."""
    assert loop_controls_for(variants(["lazy"]), [setting(SEEN).lane()]) == {}


def test_what_is_learnt_from_rows(tmp_path: Path) -> None:
    """Sizes and iterations of rows that were served, as policies are told them; a table is measured with like rows."""
    model: Any = lb.load(write_program(tmp_path))
    given = rows(30)
    found = learnt(model, given)
    assert found.lengths is not None
    assert found.lengths.pairs["decoder"] == tuple((len(row["source"]), int(row["target"])) for row in given)
    assert commonest(model, given) == given
    made = lb.profile(model, (1, 2), budget_s=0.1, inputs=given[:2])
    guesses = as_lengths(found, made)
    assert guesses is not None
    assert guesses["decoder"].seen == 30
    assert as_lengths(None, made) is None
    assert set(as_lengths(Loops(trips="4"), made) or {}) == {"decoder"}


def test_options(table: Path, lengths: Path) -> None:
    """One of the two for a table with loops, none for another; both name the loop."""
    assert read_loops(TOY, lengths, None) is not None
    with pytest.raises(InvalidInput, match="--lengths FILE or --trips N"):
        read_loops(TOY, None, None)
    with pytest.raises(InvalidInput, match="--lengths FILE or --trips N"):
        read_loops(TOY, lengths, "3")
    with pytest.raises(InvalidInput, match="has no loop 'encoder'"):
        read_loops(TOY, None, "encoder=3")
    plain = replace(TOY, provenance={})
    assert read_loops(plain, None, None) is None
    with pytest.raises(InvalidInput, match="for models with loops"):
        read_loops(plain, None, "3")


def test_the_script_simulated(
    table: Path, lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--table with --lengths: the usual policies for loops, a JSON of rows."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    arguments = ["--table", str(table), "--quick", "--requests", "60", "--seeds", "1", "--sla-ms", "200"]
    arguments += ["--load", "0.5", "--refine", "0", "--jobs", "1", "--no-plots", "-o", str(tmp_path / "out")]
    arguments += ["--policy", "graph:0", "continuous", "lookahead"]
    assert sla_sweep.main(options().parse_args([*arguments, "--lengths", str(lengths)])) == 0
    document = json.loads((tmp_path / "out" / "sla_sweep.json").read_text())
    assert {row["policy"] for row in document["rows"]} == {"graph:0", "continuous", "lookahead"}
    assert "one request alone 12.5 ms" in capsys.readouterr().out
    assert run_script(sla_sweep.main, options().parse_args([*arguments, "--lengths", "gone.txt"])) == 2
    assert "gone.txt" in capsys.readouterr().err
    assert run_script(sla_sweep.main, options().parse_args([*arguments, "--trips", "2", "--sla-ms", "7"])) == 2
    assert "one request alone takes 7.500 ms" in capsys.readouterr().err


def test_the_script_live(tmp_path: Path) -> None:
    """--live PROGRAM.json: made-up rows of different lengths, how often they go round learnt from them."""
    write_program(tmp_path)
    assert isinstance(served(str(tmp_path)), ProgramFile)
    arguments = ["--live", str(tmp_path / "program.json"), "--quick", "--seconds", "0.3", "--rate", "60"]
    arguments += ["--sla-ms", "2000", "--policy", "graph:0", "continuous", "lookahead", "--max-batch-size", "4"]
    assert sla_sweep.main(options().parse_args([*arguments, "--no-plots", "-o", str(tmp_path / "out")])) == 0
    document = json.loads((tmp_path / "out" / "sla_sweep.json").read_text())
    assert len(document["rows"]) == 3
    assert all(row["answered"] == row["judged"] > 0 and not row["simulated"] for row in document["rows"])
