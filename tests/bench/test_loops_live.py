"""The live comparison of policies on a loop, at its smallest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import loops_judgement, loops_live
from bench.programs import LOOPED
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput


def test_a_row_alone_takes_its_iterations() -> None:
    """What lies outside of loops once, bodies as often as the row goes round."""
    table = LatencyTable("m", ("a", "b", "c", "d"), (1,), ((5,), (2,), (3,), (7,)), ((5,), (2,), (3,), (7,)), {})

    class Served:
        graph = NodeGraph.chain("m", table.nodes, [Loop("body", 1, 3)])

    assert loops_live.alone_ns(Served(), table, [4.0]) == 5 + 4 * (2 + 3) + 7


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--model", "resnet50"], "resnet50"),
        (["--load", "0"], "load"),
        (["--seconds", "-1"], "--seconds"),
        (["--max-batch-size", "0"], "--max-batch-size"),
        (["--policy", "fastest"], "fastest"),
    ],
)
def test_bad_options_are_named(arguments: list[str], culprit: str) -> None:
    """Wrong options are refused before anything is measured, in words that name them."""
    with pytest.raises(InvalidInput, match=culprit):
        loops_live.main(loops_live.options().parse_args(arguments))


@pytest.mark.slow
def test_the_whole_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A short run on the smallest model: every policy at every load, live and simulated, with all figures."""
    assert "gnmt-tiny" in LOOPED
    path = tmp_path / "loops.json"
    arguments = ["--quick", "--seconds", "0.1", "--max-batch-size", "8", "--json", str(path)]
    assert loops_live.main(loops_live.options().parse_args(arguments)) in (0, 1)
    document = json.loads(path.read_text())
    runs = [row for row in document["rows"] if row["what"] == "run"]
    assert {(row["policy"], row["load_of"], row["load"]) for row in runs} == {
        (policy, *cell)
        for policy in ("graph:0", "continuous", "lazy", "lookahead")
        for cell in (("graph", 0.5), ("graph", 0.9), ("continuous", 0.95))
    }
    assert all(row["failed"] == 0 and row["pace"] > 0 and row["predicted_mean_ms"] > 0 for row in runs)
    titles = {row["policy"] for row in runs}
    assert all(set(row["simulated_mean_ms_at_pace_of"]) == titles for row in runs)
    assert "met_at_1.5_times_the_rate" in document["figures"]
    assert "capacity of graph:0" in capsys.readouterr().out
    assert loops_judgement.main(loops_judgement.options().parse_args([str(path)])) == 0
    assert "## gnmt-tiny" in capsys.readouterr().out
