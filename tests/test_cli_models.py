"""The commands that take a model: check, partition, profile; and the demo's command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.checking import CheckReport
from lazybatch.cli import main
from lazybatch.errors import ModelError
from tests.commands import refused, run_json
from tests.onnx_models import F32, build, const, op, save, value

RNG = np.random.default_rng(0)
W1, W2 = RNG.standard_normal((8, 8)), RNG.standard_normal((8, 4))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of this test are kept apart from everybody else's."""
    monkeypatch.setenv("LAZYBATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    """Two layers; rows are independent."""
    nodes = [op("MatMul", "x w1", "h"), op("Relu", "h", "r"), op("MatMul", "r w2", "y")]
    model = build(
        nodes,
        [value("x", F32, ["n", 8])],
        [value("y", F32, ["n", 4])],
        [const("w1", W1, np.float32), const("w2", W2, np.float32)],
    )
    return save(model, tmp_path / "mlp.onnx")


@pytest.fixture
def mixing(tmp_path: Path) -> Path:
    """Normalises over the batch: a row's answer depends on who it runs with."""
    model = build([op("Softmax", "x", "y", axis=0)], [value("x", F32, ["n", 8])], [value("y", F32, ["n", 8])])
    return save(model, tmp_path / "mixing.onnx")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An exported torch program with a dynamic batch."""
    import torch

    from tests.torch_modules import sound

    batch = sound("tied").batch(2)
    axes = {"x": {0: torch.export.Dim("n")}}
    torch.export.save(torch.export.export(sound("tied").module(), (), batch, dynamic_shapes=axes), tmp_path / "t.pt2")
    return tmp_path / "t.pt2"


def test_torch_programs(capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path) -> None:
    """check, partition and profile take an exported torch program as they take an ONNX file."""
    status, got = run_json(capsys, "check", program, "--preempt-within-ms", "0.001")
    assert (status, got["joinable"], got["identical"]) == (0, True, True)
    status, got = run_json(capsys, "partition", program, "-o", tmp_path / "parts", "--preempt-within-ms", "0.001")
    assert (status, got["joinable"]) == (0, True)
    assert got["nodes"] > 1
    assert lb.load(tmp_path / "parts").fingerprint == got["fingerprint"]
    status, got = run_json(
        capsys, "profile", program, "-o", tmp_path / "t.json", "--budget-s", "0.1", "--batch-sizes", "1,2"
    )
    assert status == 0
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 8), np.float32))
    text = refused(capsys, "partition", program, "-o", tmp_path / "more", "--inputs", tmp_path / "rows.npz")
    assert "brings its own example inputs" in text


class TestCheck:
    """``check``: the promised keys, and an exit status that follows from them."""

    def test_joinable(self, capsys: pytest.CaptureFixture[str], mlp: Path) -> None:
        """A model of independent rows holds: joinable without a reason, the chain's answers are the whole model's."""
        status, got = run_json(capsys, "check", mlp)
        assert status == 0
        assert {"nodes", "joinable", "reason", "max_abs_diff", "chain_over_whole"} <= got.keys()
        assert (got["joinable"], got["reason"], got["identical"]) == (True, None, True)
        assert got["nodes"] >= 1
        assert got["chain_over_whole"] > 0

    def test_not_joinable(self, capsys: pytest.CaptureFixture[str], mixing: Path) -> None:
        """A model that mixes rows does not hold: exit status 1, and the reason can be read."""
        status, got = run_json(capsys, "check", mixing)
        assert status == 1
        assert got["joinable"] is False
        assert got["reason"]
        assert main(["check", str(mixing)]) == 1
        assert got["reason"] in capsys.readouterr().out

    def test_a_chain_that_differs(
        self, capsys: pytest.CaptureFixture[str], mlp: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Should the nodes ever answer differently from the whole model, that is exit status 1 and said in capitals."""
        report = CheckReport("mlp", 2, True, None, float("nan"), 1.0, False, ("a note",))
        monkeypatch.setattr("lazybatch.cli.checks.check", lambda model: report)
        status, got = run_json(capsys, "check", mlp)
        assert (status, got["identical"], got["max_abs_diff"]) == (1, False, None)
        assert main(["check", str(mlp)]) == 1
        out = capsys.readouterr().out
        assert "NOT those of the whole model" in out
        assert "a note" in out

    def test_own_rows(self, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
        """Rows from a file are what the model is probed with; a partition directory can be checked too."""
        rows = tmp_path / "rows.npz"
        np.savez(rows, x=RNG.standard_normal((3, 8)).astype(np.float32))
        assert run_json(capsys, "check", mlp, "--inputs", rows)[0] == 0
        run_json(capsys, "partition", mlp, "-o", tmp_path / "nodes")
        assert run_json(capsys, "check", tmp_path / "nodes")[1]["joinable"] is True


class TestPartition:
    """``partition``: a directory that can be loaded instead of the model."""

    def test_it_can_be_loaded(self, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
        """The directory holds the nodes named in the output, and serves what the file serves."""
        directory = tmp_path / "new" / "nodes"
        status, got = run_json(capsys, "partition", mlp, "-o", directory, "--preempt-within-ms", 0.00001)
        assert status == 0
        assert got["nodes"] == len(got["pieces"])
        assert all((directory / piece["file"]).exists() for piece in got["pieces"])
        model = lb.load(directory)
        assert (model.fingerprint, model.joinable) == (got["fingerprint"], True)
        assert [node.name for node in model.graph.nodes] == [piece["name"] for piece in got["pieces"]]

    def test_for_people(self, capsys: pytest.CaptureFixture[str], mlp: Path, mixing: Path, tmp_path: Path) -> None:
        """The text says how many nodes, and why rows run alone where they do; that is no failure of the command."""
        assert main(["partition", str(mlp), "-o", str(tmp_path / "a")]) == 0
        assert "may share a batch" in capsys.readouterr().out
        assert main(["partition", str(mixing), "-o", str(tmp_path / "b")]) == 0
        assert "rows run alone: " in capsys.readouterr().out

    def test_long_chains_are_summarised(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """Of a long chain the longest nodes are shown, and how many more there are."""
        names = [f"t{k}" for k in range(41)]
        nodes = [op("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
        shape = ["n", 8]
        model = build(nodes, [value("t0", F32, shape)], [value("t40", F32, shape)], [const("w", W1, np.float32)])
        path = save(model, tmp_path / "long.onnx")
        assert main(["partition", str(path), "-o", str(tmp_path / "a"), "--preempt-within-ms", "0.0000001"]) == 0
        assert "shorter ones" in capsys.readouterr().out


class TestProfile:
    """``profile``: a table that belongs to the model, and a verdict."""

    def test_table(self, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
        """The table is written, loads, names the command without folders, and its simulation runs."""
        path = tmp_path / "table.json"
        status, got = run_json(
            capsys, "profile", mlp, "-o", path, "--batch-sizes", "1,2,4", "--budget-s", 5, "--repeats", 5
        )
        assert status == 0
        table = lb.LatencyTable.load(path)
        assert table.batch_sizes == (1, 2, 4)
        assert [point["rows"] for point in got["curve"]] == [1, 2, 4]
        assert table.engine is not None
        assert got["engine"] == asdict(table.engine)
        assert got["engine"]["open_ns"] > 0
        assert got["verdict"].startswith("mlp: batching ")
        assert table.provenance["command"] == (
            "lazybatch profile mlp.onnx -o table.json --batch-sizes 1,2,4 --budget-s 5 --repeats 5"
        )
        assert table.provenance["fingerprint"] == lb.load(mlp).fingerprint == got["fingerprint"]
        assert not (tmp_path / "table.json.partial").exists()
        assert run_json(capsys, "simulate", "--table", path, "--rate", 10, "--requests", 20)[0] == 0

    def test_for_people(self, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
        """The text opens with the verdict and says with which rows was measured."""
        command = ["profile", str(mlp), "-o", str(tmp_path / "table.json"), "--repeats", "3", "--budget-s", "5"]
        assert main(command) == 0
        out = capsys.readouterr().out
        assert out.startswith("mlp: batching ")
        assert "made-up rows, x: float32[8]" in out
        assert "per row besides where a batch begins" in out

    def test_into_a_pipe(self, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
        """What has been measured is not kept beside a pipe, nor taken from there; the pipe's reader gets the table."""
        pipe, beside = tmp_path / "pipe", tmp_path / "pipe.partial"
        os.mkfifo(pipe)
        beside.write_text("somebody else's")
        reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            run_json(capsys, "profile", mlp, "-o", pipe, "--batch-sizes", "1", "--repeats", 3)
            assert json.loads(os.read(reader, 1 << 16))["model"] == "mlp"
        finally:
            os.close(reader)
        assert beside.read_text() == "somebody else's"

    def test_own_rows_and_granularity(self, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
        """Rows from a file are used, and the options are part of the recorded command."""
        rows, path = tmp_path / "rows.npz", tmp_path / "table.json"
        np.savez(rows, x=RNG.standard_normal((2, 8)).astype(np.float32))
        run_json(
            capsys,
            *("profile", mlp, "-o", path, "--inputs", rows, "--preempt-within-ms", 2),
            *("--repeats", 3, "--batch-sizes", "1,2"),
        )
        provenance = lb.LatencyTable.load(path).provenance
        assert provenance["inputs"] == "given"
        assert str(provenance["command"]).endswith("--inputs rows.npz --preempt-within-ms 2")

    def test_not_joinable(self, capsys: pytest.CaptureFixture[str], mixing: Path, tmp_path: Path) -> None:
        """A model whose rows run alone is measured at one row; the verdict says why."""
        status, got = run_json(capsys, "profile", mixing, "-o", tmp_path / "t.json", "--repeats", 3)
        assert (status, got["batch_sizes"], got["joinable"]) == (0, [1], False)
        assert "rows are served alone" in got["verdict"]


BAD = {
    "missing model": (["check", "no.onnx"], "no.onnx"),
    "partition missing model": (["partition", "no.onnx", "-o", "out"], "no.onnx"),
    "profile missing model": (["profile", "no.onnx", "-o", "t.json"], "no.onnx"),
    "no model": (["check"], "MODEL"),
    "no output": (["partition", "mlp.onnx"], "--output"),
    "truncated": (["check", "cut.onnx"], "cut.onnx"),
    "not onnx": (["partition", "text.onnx", "-o", "out"], "text.onnx"),
    "not a partition": (["check", "empty"], "empty"),
    "output is a file": (["partition", "mlp.onnx", "-o", "text.onnx"], "text.onnx"),
    "output below a file": (["partition", "mlp.onnx", "-o", "text.onnx/nodes"], "text.onnx"),
    "granularity": (["check", "mlp.onnx", "--preempt-within-ms", "0"], "--preempt-within-ms"),
    "granularity nan": (["partition", "mlp.onnx", "-o", "out", "--preempt-within-ms", "nan"], "--preempt-within-ms"),
    "threads": (["check", "mlp.onnx", "--threads", "-1"], "threads"),
    "sizes": (["profile", "mlp.onnx", "-o", "t.json", "--batch-sizes", "1,two"], "--batch-sizes"),
    "sizes order": (["profile", "mlp.onnx", "-o", "t.json", "--batch-sizes", "4,1"], "batch sizes must increase"),
    "budget": (["profile", "mlp.onnx", "-o", "t.json", "--budget-s", "0"], "budget_s"),
    "repeats": (["profile", "mlp.onnx", "-o", "t.json", "--repeats", "0"], "repeats"),
    "output folder": (["profile", "mlp.onnx", "-o", "no/such/t.json"], "no/such"),
    "output is a folder": (["profile", "mlp.onnx", "-o", "empty"], "empty"),
    "rows missing": (["profile", "mlp.onnx", "-o", "t.json", "--inputs", "no.npz"], "no.npz"),
    "rows text": (["profile", "mlp.onnx", "-o", "t.json", "--inputs", "text.onnx"], "text.onnx"),
    "rows npy": (["profile", "mlp.onnx", "-o", "t.json", "--inputs", "one.npy"], "one.npy"),
    "rows ragged": (["profile", "mlp.onnx", "-o", "t.json", "--inputs", "ragged.npz"], "same number of rows"),
    "rows pickled": (["profile", "mlp.onnx", "-o", "t.json", "--inputs", "pickled.npz"], "pickled.npz"),
    "rows wrong name": (["profile", "mlp.onnx", "-o", "t.json", "--inputs", "wrong.npz"], "'x'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    case: str, capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thing that can be wrong gives exit status 2 and one line that names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cut.onnx").write_bytes(mlp.read_bytes()[:-40])
    (tmp_path / "text.onnx").write_text("this is no model\n")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "one.npy", np.zeros((2, 8), np.float32))
    np.savez(tmp_path / "ragged.npz", x=np.zeros((2, 8)), y=np.zeros((3, 8)))
    np.savez(tmp_path / "pickled.npz", x=np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "wrong.npz", z=np.zeros((2, 8), np.float32))
    argv, culprit = BAD[case]
    assert culprit in refused(capsys, *argv)


class TestDemo:
    """``demo``: passes its options on, fails when answers differ; the demonstration has tests of its own."""

    @pytest.fixture
    def demo(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[dict[str, Any]]]:
        """Replaces the demonstration (minutes of load) by one that notes how it was called."""

        def install(answers_equal: bool) -> list[dict[str, Any]]:
            calls: list[dict[str, Any]] = []

            def run_demo(out: Path, **options: Any) -> dict[str, Any]:
                calls.append({"out": out, **options})
                options["progress"]("working")
                return {"answers_equal": answers_equal, "rows": [(1, float("inf"))]}

            monkeypatch.setattr("lazybatch.cli.showing.run_demo", run_demo)
            return calls

        return install

    def test_options_and_status(
        self, capsys: pytest.CaptureFixture[str], demo: Callable[[bool], list[dict[str, Any]]]
    ) -> None:
        """Options arrive; with --json it prints no table of its own; wrong answers are exit status 1."""
        calls = demo(True)
        status, got = run_json(capsys, "demo", "--seconds", 2, "--seed", 5, "--out", "somewhere")
        assert (status, got["rows"]) == (0, [[1, None]])
        assert (calls[0]["out"], calls[0]["seconds"], calls[0]["seed"]) == (Path("somewhere"), 2.0, 5)
        assert calls[0]["show"] is False
        calls = demo(False)
        assert main(["demo"]) == 1
        assert calls[0]["show"] is True

    def test_missing_models(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the package that carries the models there is one line and exit status 2."""

        def run_demo(*_: Any, **__: Any) -> dict[str, Any]:
            raise ModelError("the demo needs the package rapidocr-onnxruntime")

        monkeypatch.setattr("lazybatch.cli.showing.run_demo", run_demo)
        assert "rapidocr-onnxruntime" in refused(capsys, "demo")


def test_progress_only_on_a_terminal(capsys: pytest.CaptureFixture[str], mlp: Path, tmp_path: Path) -> None:
    """Where stderr is no terminal a profile leaves it empty."""
    assert main(["profile", str(mlp), "-o", str(tmp_path / "t.json"), "--repeats", "3", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    json.loads(captured.out)
