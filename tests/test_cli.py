"""The command line: figures on stdout, one line per error on stderr, exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lazybatch.cli import main, simulation
from lazybatch.policies import names
from lazybatch.profiles import LatencyTable
from lazybatch.trace import TraceWriter
from tests.commands import refused, run_json

MS = 1_000_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of a model where batching pays: 6 nodes, S(b) = 8 + b ms."""
    path = tmp_path / "table.json"
    LatencyTable.uniform("m", 6, 8 * MS, MS, (1, 2, 4, 8, 16)).save(path)
    return path


class TestSimulate:
    """``simulate``: the figures, their reproducibility, every bad input."""

    def test_figures(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """All promised keys are there, and agree with each other and with what was asked."""
        status, got = run_json(
            capsys,
            *("simulate", "--table", table, "--policy", "lazy", "--rate", 150),
            *("--requests", 400, "--sla-ms", 100, "--seed", 3),
        )
        assert status == 0
        promised = {"mean_ms", "p50_ms", "p99_ms", "violations", "throughput_rps", "dropped", "mean_batch"}
        assert promised <= got.keys()
        assert got["simulated"] is True
        assert got["completed"] + got["dropped"] == got["requests"] == 400
        assert got["violations"] == pytest.approx((got["late"] + got["dropped"]) / 400)
        assert 9 <= got["p50_ms"] <= got["p99_ms"] <= got["max_ms"]
        assert 1 <= got["mean_batch"] <= 16
        assert sum(got["reasons"].values()) == got["dispatches"]
        assert 0 < got["utilisation"] <= 1

    def test_seed(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """The same seed gives the same figures, another seed others."""
        base = ("simulate", "--table", table, "--rate", 150, "--requests", 200, "--sla-ms", 100)
        first = run_json(capsys, *base, "--seed", 1)
        assert first == run_json(capsys, *base, "--seed", 1)
        assert first != run_json(capsys, *base, "--seed", 2)

    def test_serial_at_low_load_is_the_table(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """One request a second under serial takes exactly S(1) = 9 ms, never late, one row at a time."""
        base = ("simulate", "--table", table, "--policy", "serial", "--requests", 20, "--sla-ms", 50)
        _, got = run_json(capsys, *base, "--rate", 1, "--seed", 2)
        assert got["p50_ms"] == pytest.approx(9.0, abs=0.001)
        assert (got["violations"], got["dropped"], got["mean_batch"]) == (0, 0, 1)

    def test_policies_and_their_options(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """A window makes lone requests wait; a cap of one row makes graph batching serial; a short queue drops."""
        base = ("simulate", "--table", table, "--policy", "graph", "--requests", 50)
        _, at_once = run_json(capsys, *base, "--rate", 2)
        _, windowed = run_json(capsys, *base, "--rate", 2, "--window-ms", 20)
        assert windowed["mean_ms"] == pytest.approx(at_once["mean_ms"] + 20, abs=3)
        assert at_once["sla_ms"] is None
        _, capped = run_json(capsys, *base, "--rate", 500, "--max-batch", 1)
        assert capped["mean_batch"] == 1
        _, dropping = run_json(capsys, *base, "--rate", 5_000, "--queue-capacity", 4, "--max-batch", 4)
        assert dropping["dropped"] > 0

    def test_late_rows(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """Past saturation late rows are served by default; dropped, none of those that ran alone was late."""
        base = ("simulate", "--table", table, "--policy", "serial", "--requests", 200, "--rate", 200, "--sla-ms", 50)
        _, served = run_json(capsys, *base)
        assert served["late_rows"] == "serve"
        assert (served["dropped"], served["completed"]) == (0, 200)
        assert served["late"] > 100
        _, dropped = run_json(capsys, *base, "--late", "drop")
        assert dropped["late_rows"] == "drop"
        assert (dropped["late"], dropped["completed"] + dropped["dropped"]) == (0, 200)
        assert dropped["completed"] - dropped["late"] > served["completed"] - served["late"]
        assert "--late must be 'serve' or 'drop', got 'skip'" in refused(capsys, *base, "--late", "skip")

    def test_recorded_arrivals(self, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:
        """Arrivals from a file replace the rate; --requests bounds how many are taken."""
        arrivals = tmp_path / "arrivals.txt"
        arrivals.write_text("0\n1\n2\n")
        _, got = run_json(capsys, "simulate", "--table", table, "--policy", "serial", "--arrivals", arrivals)
        assert (got["requests"], got["rate_rps"]) == (3, None)
        _, got = run_json(
            capsys, "simulate", "--table", table, "--policy", "serial", "--arrivals", arrivals, "--requests", 2
        )
        assert got["requests"] == 2

    def test_recorded_arrivals_are_all_taken(
        self, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
    ) -> None:
        """Unless --requests says how many; of a rate it is a thousand."""
        arrivals = tmp_path / "arrivals.txt"
        arrivals.write_text("".join(f"{number / 10}\n" for number in range(1_003)))
        base = ("simulate", "--table", table, "--policy", "serial")
        assert run_json(capsys, *base, "--arrivals", arrivals)[1]["requests"] == 1_003
        assert run_json(capsys, *base, "--arrivals", arrivals, "--requests", 1_001)[1]["requests"] == 1_001
        assert run_json(capsys, *base, "--rate", 10)[1]["requests"] == 1_000

    def test_the_length_that_is_simulated_is_named(
        self, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
    ) -> None:
        """A padded model's table holds several: it is said that every row is taken to be of the longest."""
        base = ("--policy", "serial", "--rate", 10, "--requests", 5)
        assert "padded_length" not in run_json(capsys, "simulate", "--table", table, *base)[1]
        longest, path = LatencyTable.load(table), tmp_path / "padded.json"
        shorter = {16: LatencyTable.uniform("m", 6, 4 * MS, MS, (1, 2, 4, 8, 16))}
        for provenance, known, words in (
            ({"padded_lengths": [16, 64]}, 64, "the longest padded length, 64; the table has 16 as well"),
            ({}, None, "the longest padded length; the table has 16 as well"),
        ):
            replace(longest, shorter=shorter, provenance=provenance).save(path)
            assert run_json(capsys, "simulate", "--table", path, *base)[1]["padded_length"] == known
            assert main(["simulate", "--table", str(path), *map(str, base)]) == 0
            assert f"every row simulated at {words}" in capsys.readouterr().out

    def test_trace(self, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:
        """--trace writes a readable trace with as many node slices as there were dispatches."""
        trace = tmp_path / "trace.json"
        _, got = run_json(
            capsys, "simulate", "--table", table, "--rate", 150, "--requests", 100, "--sla-ms", 100, "--trace", trace
        )
        events = json.loads(trace.read_text())
        assert sum(event["ph"] == "X" for event in events) == got["dispatches"]
        assert sum(event["name"] == "preempted" for event in events) == got["preemptions"] > 0
        assert sum(event["name"] == "merged" for event in events) == got["merges"]
        assert got["trace_events_left_out"] == 0

    def test_a_trace_that_holds_not_all_of_the_run(
        self, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A trace that is cut off is counted in the output; one that cannot be written is an error, not a success."""
        load = ("simulate", "--table", table, "--rate", 150, "--requests", 100, "--trace")
        monkeypatch.setattr(simulation, "TraceWriter", partial(TraceWriter, max_events=40))
        _, got = run_json(capsys, *load, tmp_path / "trace.json")
        assert got["trace_events_left_out"] > 100
        os.mkfifo(tmp_path / "pipe")
        for place in (tmp_path / "pipe", "/dev/full"):
            assert main([*map(str, load), str(place)]) == 2
            assert f"error: cannot write the trace '{place}'" in capsys.readouterr().err

    def test_for_people(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """Without --json a few lines of text say the same, and that it was simulated."""
        assert main(["simulate", "--table", str(table), "--rate", "10", "--requests", "5", "--sla-ms", "50"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("simulated: m, policy lookahead, 5 requests at 10/s, target 50 ms")
        assert "violations" in out

    def test_every_policy_by_name(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """All names are accepted; the default is lookahead."""
        base = ("simulate", "--table", table, "--rate", 60, "--requests", 60, "--sla-ms", 100)
        for name in names():
            status, got = run_json(capsys, *base, "--policy", name)
            assert (status, got["policy"], got["completed"]) == (0, name, 60)
        assert run_json(capsys, *base)[1]["policy"] == "lookahead"

    def test_explain(self, capsys: pytest.CaptureFixture[str], table: Path) -> None:
        """--explain N: the first N decisions in words; -N: the last N; with --json as records with both costs."""
        base = ("simulate", "--table", table, "--rate", 150, "--requests", 100, "--sla-ms", 100)
        _, plain = run_json(capsys, *base)
        assert "decisions" not in plain
        _, got = run_json(capsys, *base, "--explain", 1000)
        everything = got["decisions"]
        starts = [one for one in everything if one["opened"]]
        assert len(starts) == got["sub_batches"]
        assert sorted(row for one in starts for row in one["opened"]) == list(range(100))
        compared = [one for one in starts if one["preempted"] is not None]
        assert len(compared) == got["preemptions"] > 0
        assert all(one["comparison"]["start_cost"] < one["comparison"]["stay_cost"] for one in compared)
        assert run_json(capsys, *base, "--explain", 3)[1]["decisions"] == everything[:3]
        assert run_json(capsys, *base, "--explain", -3)[1]["decisions"] == everything[-3:]
        assert main([*map(str, base), "--explain", "2"]) == 0
        lines = capsys.readouterr().out.splitlines()[-2:]
        assert all("model 'm': " in line and "started as sub-batch" in line for line in lines)

    @pytest.mark.parametrize(
        ("change", "culprit"),
        [
            (["--rate", "0"], "rate"),
            (["--rate", "-3"], "rate"),
            (["--rate", "nan"], "rate"),
            (["--rate", "inf"], "rate"),
            (["--rate", "fast"], "--rate"),
            (["--policy", "magic"], "magic"),
            (["--sla-ms", "0"], "--sla-ms"),
            (["--sla-ms", "-1"], "--sla-ms"),
            (["--sla-ms", "nan"], "--sla-ms"),
            (["--sla-ms", "8.99"], "--sla-ms 8.99 cannot be met: one row alone takes 9 ms"),
            (["--requests", "0"], "--requests"),
            (["--requests", "-5"], "--requests"),
            (["--requests", "2.5"], "--requests"),
            (["--seed", "x"], "--seed"),
            (["--window-ms", "5"], "--window-ms belongs to policy 'graph'"),
            (["--policy", "graph", "--window-ms", "-5"], "--window-ms"),
            (["--policy", "graph", "--window-ms", "nan"], "--window-ms"),
            (["--max-batch", "0"], "--max-batch"),
            (["--max-batch", "1000000000"], "--max-batch"),
            (["--queue-capacity", "0"], "--queue-capacity"),
            (["--arrivals", "/no/such/file"], "either --rate"),
            (["--trace", "/no/such/folder/trace.json"], "/no/such/folder"),
            (["--table", "/no/such/table.json"], "/no/such/table.json"),
            (["--explain", "x"], "--explain"),
            (["--explain", "10000000"], "--explain"),
            (["--nonsense"], "--nonsense"),
        ],
    )
    def test_bad_input(self, capsys: pytest.CaptureFixture[str], table: Path, change: list[str], culprit: str) -> None:
        """Each bad option gives exit status 2 and one line that names it."""
        assert culprit in refused(capsys, "simulate", "--table", table, "--rate", 10, "--requests", 5, *change)

    def test_bad_files(self, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:
        """A damaged table, arrivals out of order, an empty trace, no load at all."""
        bad = tmp_path / "bad.json"
        bad.write_text(table.read_text()[:100])
        assert "bad.json" in refused(capsys, "simulate", "--table", bad, "--rate", 10)
        holes = json.loads(table.read_text())
        holes["nodes"][2]["median_ns"][1] = None
        bad.write_text(json.dumps(holes))
        assert "without holes" in refused(capsys, "simulate", "--table", bad, "--rate", 10)
        late = tmp_path / "late.txt"
        late.write_text("2\n1\n")
        assert "line 2: out of order" in refused(capsys, "simulate", "--table", table, "--arrivals", late)
        late.write_text("# nothing\n")
        assert "no arrivals" in refused(capsys, "simulate", "--table", table, "--arrivals", late)
        assert "either --rate" in refused(capsys, "simulate", "--table", table)
        assert "--table" in refused(capsys, "simulate", "--rate", 10)


COMMANDS = ("check", "partition", "profile", "simulate", "demo")


class TestShell:
    """What holds for every command."""

    def test_help_teaches(self, capsys: pytest.CaptureFixture[str]) -> None:
        """--help lists the commands; each command's help has an example and its exit status is 0."""
        assert main(["--help"]) == 0
        listed = capsys.readouterr().out
        for command in COMMANDS:
            assert command in listed
            assert main([command, "--help"]) == 0
            assert f"Example: lazybatch {command}" in " ".join(capsys.readouterr().out.split())

    def test_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        """No command, an unknown one, a missing argument: status 2 and one line."""
        refused(capsys)
        assert "simulat" in refused(capsys, "simulat")

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        """--version prints one line."""
        assert main(["--version"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1

    def test_debug_shows_the_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        """--debug adds the traceback to the line, the status stays."""
        assert main(["simulate", "--table", "/no/such", "--rate", "1", "--debug"]) == 2
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("error: ")

    def test_a_fault_of_ours_is_no_usage_error(
        self, capsys: pytest.CaptureFixture[str], table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An unexpected exception is one line too, with a status that no check uses; an interrupt has its own."""

        def fail(error: BaseException) -> None:
            def raise_it(*_: object, **__: object) -> None:
                raise error

            monkeypatch.setattr("lazybatch.cli.simulation.simulate", raise_it)

        command = ["simulate", "--table", str(table), "--rate", "1"]
        fail(RuntimeError("boom"))
        assert main(command) == 70
        assert capsys.readouterr().err.startswith("error: RuntimeError: boom (a fault in lazybatch")
        assert main([*command, "--debug"]) == 70
        assert "Traceback" in capsys.readouterr().err
        fail(ModuleNotFoundError("No module named 'plots'", name="plots"))
        assert main(command) == 2
        assert "needs the package 'plots'; run `pip install" in capsys.readouterr().err
        fail(KeyboardInterrupt())
        assert main(command) == 130
        assert capsys.readouterr().err.splitlines()[-1] == "interrupted"

    def test_interrupted_while_it_is_imported(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One word, too, and no traceback."""

        class Interrupting:
            def find_spec(self, name: str, *_: object) -> None:
                if name == "lazybatch.cli.app":
                    raise KeyboardInterrupt

        monkeypatch.delitem(sys.modules, "lazybatch.cli.app")
        monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
        assert main(["check"]) == 130
        assert capsys.readouterr().err == "interrupted\n"

    def test_as_a_module(self, table: Path) -> None:
        """``python -m lazybatch`` works, as a process of its own, with JSON alone on stdout."""
        command = [sys.executable, "-m", "lazybatch", "simulate", "--table", str(table), "--rate", "10", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["model"] == "m"

    @pytest.mark.parametrize("more", [[], ["--explain", "3000"], ["--json"]])
    def test_a_reader_that_has_gone(self, table: Path, more: list[str]) -> None:
        """Whether little or much is left to be written: without a word, and with the status that shells expect."""
        command = [sys.executable, "-m", "lazybatch", "simulate", "--table", str(table), "--rate", "100", *more]
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")

    def test_without_the_extra(self, tmp_path: Path) -> None:
        """Where typer is not installed one line says what to install."""
        (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No module named typer', name='typer')\n")
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        command = [sys.executable, "-m", "lazybatch", "demo"]
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        assert done.returncode == 2
        assert done.stderr.strip() == (
            "error: the command line needs the package 'typer'; run `pip install 'lazybatch[cli]'`"
        )
