"""The commands on a program: check, partition, profile, characterize, simulate, on a small one built here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.cli import main, measuring
from lazybatch.policies import names
from lazybatch.table_loops import loops_of
from tests.commands import refused, run_json
from tests.small_program import ROOM, SOURCE, answer, rows, write_mixing, write_program, write_shared


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program's file, and a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_program(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def table(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its latency table, by the command."""
    path = tmp_path_factory.mktemp("table") / "table.json"
    assert main(["profile", str(small), "-o", str(path), "--batch-sizes", "1,2,4", "--budget-s", "0.3"]) == 0
    return path


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Recorded lengths: longer sources have longer answers."""
    path = tmp_path / "lengths.csv"
    path.write_text("input,output\n" + "".join(f"{n % SOURCE + 1},{n % SOURCE + n % 3 + 1}\n" for n in range(400)))
    return path


class TestCheck:
    """``check PROGRAM.json``."""

    def test_stage_by_stage_and_as_a_whole(self, capsys: pytest.CaptureFixture[str], small: Path) -> None:
        """Every stage is proved; rows that joined and left at random got what they got alone."""
        status, got = run_json(capsys, "check", small)
        assert (status, got["joinable"], got["equal"], got["identical"]) == (0, True, True, True)
        assert [(stage["stage"], stage["loop"], stage["nodes"]) for stage in got["stages"]] == [
            ("encoder", False, 1),
            ("decoder", True, 1),
        ]
        assert got["stages"][1]["same_iteration"] is False
        assert all(stage["max_abs_diff"] < 1e-3 and stage["chain_over_whole"] > 0 for stage in got["stages"])
        assert got["rows"] >= 20
        assert got["merges"] > 0
        assert got["left_early"] > 0
        assert got["joined_max_abs_diff"] < 1e-4
        assert got["trips_max_seen"]["decoder"] <= ROOM

    def test_for_people(self, capsys: pytest.CaptureFixture[str], small: Path) -> None:
        """The same in words; a folder that holds program.json is taken, too."""
        assert main(["check", str(small.parent)]) == 0
        out = capsys.readouterr().out
        assert "loop 'decoder', 1 node" in out
        assert "joins at any iteration" in out
        assert "the same answers" in out

    def test_rows_of_ones_own(self, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
        """--inputs: rows to try the program with."""
        rng = np.random.default_rng(0)
        np.savez(tmp_path / "rows.npz", source=rng.integers(0, 9, (6, 5)), target=np.arange(1, 7))
        status, got = run_json(capsys, "check", small, "--inputs", tmp_path / "rows.npz")
        assert (status, got["rows"], got["trips_max_seen"]) == (0, 6, {"decoder": 6})

    def test_rows_that_all_fail(self, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
        """Where none of the rows that were given gets an answer, the check does not hold; one that does is enough."""
        source = np.array([[1, 99], [99, 1]])
        np.savez(tmp_path / "rows.npz", source=source, target=np.array([2, 2]))
        status, got = run_json(capsys, "check", small, "--inputs", tmp_path / "rows.npz")
        assert (status, got["rows"], got["failed"], got["equal"]) == (1, 2, 2, None)
        assert any("no row could be served" in note for note in got["notes"])
        np.savez(tmp_path / "rows.npz", source=np.minimum(source, [[2, 2], [99, 99]]), target=np.array([2, 2]))
        status, got = run_json(capsys, "check", small, "--inputs", tmp_path / "rows.npz")
        assert (status, got["failed"], got["equal"]) == (0, 1, True)

    def test_rows_that_cannot_mix_iterations(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A body that is given one iteration number for all rows joins at equal iterations only, and check says so."""
        path = write_shared(tmp_path)
        status, got = run_json(capsys, "check", path)
        assert (status, got["equal"]) == (0, True)
        decoder = got["stages"][1]
        assert decoder["same_iteration"] is True
        assert "'position' has no batch axis" in decoder["same_iteration_reason"]
        assert main(["check", str(path)]) == 0
        assert "no, at equal iterations only: its input 'position'" in capsys.readouterr().out

    def test_a_stage_whose_rows_mix(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """Exit status 1, and a reason that names the stage; it is served all the same."""
        path = write_mixing(tmp_path)
        status, got = run_json(capsys, "check", path)
        assert (status, got["joinable"]) == (1, False)
        assert got["reason"].startswith("stage 'decoder': ")
        assert [stage["joinable"] for stage in got["stages"]] == [True, False]
        assert got["equal"] is True, "rows run alone"


class TestProfile:
    """``profile PROGRAM.json`` and ``lb.profile``."""

    def test_the_table(self, small: Path, table: Path) -> None:
        """A time per node and size, of one iteration; the table knows the loop, and belongs to the program."""
        made = lb.LatencyTable.load(table)
        assert made.nodes == ("encoder", "decoder")
        assert made.batch_sizes == (1, 2, 4)
        (loop,) = loops_of(made)
        assert (loop.loop.name, loop.loop.first, loop.loop.stop, loop.loop.trips_max) == ("decoder", 1, 2, ROOM)
        assert not loop.counted
        with lb.LazyBatcher(lb.load(small), table=made, max_batch_size=4) as batcher:
            for row, got in zip(rows(20), batcher.predict_batch(rows(20)), strict=True):
                assert got["tokens"].tolist() == answer(row)["tokens"].tolist()

    def test_the_report(self, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
        """A curve per stage; --iterations bounds how often a measured run goes round."""
        path = tmp_path / "t.json"
        base = ("profile", small, "-o", path, "--batch-sizes", "1,2", "--budget-s", "0.1", "--iterations", 3)
        status, got = run_json(capsys, *base)
        assert status == 0
        assert list(got["stages"]) == ["encoder", "decoder"]
        assert [point["rows"] for point in got["stages"]["decoder"]] == [1, 2]
        assert "iterations: 3 of 'decoder'" in got["verdict"]
        assert loops_of(lb.LatencyTable.load(path))[0].iterations == 3
        assert "--iterations must" not in refused(capsys, *base[:-1], 0)
        assert main([*map(str, base)]) == 0
        assert "decoder" in capsys.readouterr().out

    def test_in_python(self, small: Path) -> None:
        """The same from Python, with rows of one's own."""
        made = lb.profile(lb.load(small), (1, 2), budget_s=0.1, inputs=[{"source": [1, 2, 3], "target": 2}])
        assert loops_of(made)[0].loop.name == "decoder"
        assert made.provenance["inputs"] == "given"


class TestPartition:
    """``partition PROGRAM.json``."""

    def test_a_program_of_partitions(self, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
        """Every stage becomes a folder, and a program that consists of them answers the same."""
        status, got = run_json(capsys, "partition", small, "-o", tmp_path / "parts")
        assert (status, got["nodes"], list(got["stages"])) == (0, 2, ["encoder", "decoder"])
        with lb.LazyBatcher(lb.load(tmp_path / "parts"), policy="continuous") as batcher:
            for row, answered in zip(rows(9), batcher.predict_batch(rows(9)), strict=True):
                assert answered["tokens"].tolist() == answer(row)["tokens"].tolist()
        assert "is partitioned already" in refused(capsys, "partition", tmp_path / "parts", "-o", tmp_path / "more")

    def test_refusals(self, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
        """Onto itself; with rows, which belong to the stages."""
        assert "the program itself lies there" in refused(capsys, "partition", small, "-o", small.parent)
        np.savez(tmp_path / "rows.npz", source=np.zeros((2, 3)))
        text = refused(capsys, "partition", small, "-o", tmp_path / "p", "--inputs", tmp_path / "rows.npz")
        assert "its stages bring their own example inputs" in text


class TestCharacterize:
    """``characterize LENGTHS -o FILE``."""

    def test_figures(self, capsys: pytest.CaptureFixture[str], lengths: Path, tmp_path: Path) -> None:
        """dec_timesteps covers the share, over all and by input size; the file is one that is loaded."""
        out = tmp_path / "made.json"
        status, got = run_json(capsys, "characterize", lengths, "-o", out, "--loop", "decoder")
        assert status == 0
        found = got["loops"]["decoder"]
        read = lb.load_lengths(out)
        seen = sorted(trips for _, trips in read.pairs["decoder"])
        assert found["rows"] == len(seen) == 400
        assert found["dec_timesteps"] == seen[359]
        assert found["mean"] == pytest.approx(sum(seen) / 400)
        assert len(found["groups"]) > 1
        assert [group["dec_timesteps"] for group in found["groups"]] == sorted(
            group["dec_timesteps"] for group in found["groups"]
        )
        status, half = run_json(capsys, "characterize", lengths, "-o", out, "--coverage", "0.5")
        assert half["loops"]["*"]["dec_timesteps"] == seen[199]
        assert main(["characterize", str(lengths), "-o", str(out)]) == 0
        text = capsys.readouterr().out
        assert "every loop: 400 rows, dec_timesteps" in text
        assert "input up to" in text

    def test_refusals(self, capsys: pytest.CaptureFixture[str], lengths: Path, tmp_path: Path) -> None:
        """Options out of range, files that are not there."""
        base = ("characterize", lengths, "-o", tmp_path / "x.json")
        assert "--coverage must be a share" in refused(capsys, *base, "--coverage", "1.5")
        assert "--loop must be the name" in refused(capsys, *base, "--loop", "")
        assert "cannot write" in refused(capsys, *base[:3], tmp_path / "nowhere" / "x.json")
        assert "cannot read the lengths" in refused(capsys, "characterize", tmp_path / "gone.csv", "-o", tmp_path / "x")
        (tmp_path / "twice.json").write_text('{"decoder": [1, 2], "decoder": [3, 4]}')
        text = refused(capsys, "characterize", tmp_path / "twice.json", "-o", tmp_path / "x")
        assert "twice.json': 'decoder' is given twice" in text


class TestSimulate:
    """``simulate`` with a table that has loops: no model is needed."""

    @pytest.mark.parametrize("policy", names())
    def test_every_policy(
        self, capsys: pytest.CaptureFixture[str], table: Path, lengths: Path, tmp_path: Path, policy: str
    ) -> None:
        """All rows are served; a trace can be had; the same seed gives the same figures."""
        trace = tmp_path / "trace.json"
        base = ("simulate", "--table", table, "--lengths", lengths, "--rate", 2000, "--requests", 60, "--seed", 3)
        status, got = run_json(capsys, *base, "--policy", policy, "--trace", trace)
        assert (status, got["completed"]) == (0, 60)
        assert got == {**run_json(capsys, *base, "--policy", policy)[1], "trace_events_left_out": 0}
        events = json.loads(trace.read_text())
        assert sum(event["ph"] == "X" for event in events) == got["dispatches"]
        assert {event["name"] for event in events if event["ph"] == "X"} == {"encoder", "decoder"}

    def test_fixed_trips(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """One row alone takes the encoder and so many iterations; characterised lengths are taken as recorded ones."""
        made = lb.LatencyTable.load(table).dispatched()
        base = ("simulate", "--table", table, "--policy", "serial", "--rate", 1, "--requests", 5)
        for trips in ("6", "decoder=6"):
            _, got = run_json(capsys, *base, "--trips", trips)
            assert got["p50_ms"] == pytest.approx((made.median_ns[0][0] + 6 * made.median_ns[1][0]) / 1e6)

    def test_refusals(self, capsys: pytest.CaptureFixture[str], table: Path, lengths: Path, tmp_path: Path) -> None:
        """Nothing said of the loop, too much said, a loop that is not there, a target nobody can meet."""
        base = ("simulate", "--table", table, "--rate", 10)
        assert "has the loop 'decoder': say how often rows go round it" in refused(capsys, *base)
        assert "either --trips" in refused(capsys, *base, "--trips", 3, "--lengths", lengths)
        assert "has no loop 'encoder'" in refused(capsys, *base, "--trips", "encoder=3")
        assert "cannot be met" in refused(capsys, *base, "--trips", 8, "--sla-ms", "0.000001")
        plain = tmp_path / "plain.json"
        lb.LatencyTable.uniform("m", 2, 1000, 10, (1, 2)).save(plain)
        assert "--trips is for models with loops" in refused(
            capsys, "simulate", "--table", plain, "--rate", 1, "--trips", 2
        )


class TestSimulateModels:
    """``simulate MODEL``: profiled first."""

    def test_a_program(self, capsys: pytest.CaptureFixture[str], small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its loops are those of the table, and people are told how to keep one."""
        monkeypatch.setattr(measuring, "_BUDGET_S", 0.2)
        status, got = run_json(capsys, "simulate", small, "--rate", 20, "--requests", 50, "--trips", 6)
        assert (status, got["model"], got["completed"]) == (0, "small", 50)
        assert got["mean_ms"] > 0
        assert main(["simulate", str(small), "--rate", "20", "--requests", "5", "--trips", "6"]) == 0
        assert f"`lazybatch profile {small} -o TABLE.json` keeps a table" in capsys.readouterr().out

    def test_refusals(
        self, capsys: pytest.CaptureFixture[str], small: Path, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing to simulate, two things, a model in a table's place; and no trips, before anything is measured."""
        monkeypatch.setattr(measuring, "profile", None)
        assert "give either --table" in refused(capsys, "simulate", "--rate", 1)
        assert "give either --table" in refused(capsys, "simulate", small, "--table", table, "--rate", 1)
        assert "a model is given without --table" in refused(capsys, "simulate", "--table", small, "--rate", 1)
        assert "has the loop 'decoder': say how often" in refused(capsys, "simulate", small, "--rate", 1)


@pytest.mark.parametrize("command", [("check",), ("profile", "-o", "t.json"), ("partition", "-o", "parts")])
def test_a_program_that_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Every command says in one line which file, stage and tensor it is; exit status 2."""
    monkeypatch.chdir(tmp_path)
    path = write_program(tmp_path)
    document: dict[str, Any] = json.loads(path.read_text())
    document["stages"][1]["model"] = "gone.onnx"
    path.write_text(json.dumps(document))
    text = refused(capsys, command[0], path, *command[1:])
    assert "program.json" in text
    assert "stage 'decoder': model 'gone.onnx': no such file" in text
