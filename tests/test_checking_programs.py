"""The check of a program finds what a stage's proof let through, and says what it could not try."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.checking import ProgramReport
from lazybatch.checking.program import _compared
from lazybatch.cli import main
from lazybatch.errors import ExecutionError, InvalidInput
from lazybatch.executors.program.model import ProgramModel
from lazybatch.executors.program.rows import ProgramResult
from tests.commands import run_json
from tests.small_program import write_mixing, write_program


def falsely_proved(folder: Path) -> ProgramModel:
    """A program whose decoder mixes rows, and whose partition claims that it does not."""
    model: Any = lb.load(write_mixing(folder))
    sound: Any = lb.load(write_program(folder))
    decoder = model.models["decoder"]
    claimed = replace(
        decoder.partition,
        joinable=True,
        reason=None,
        boundaries=sound.models["decoder"].partition.boundaries,
    )
    decoder.partition = claimed
    return ProgramModel(model.program, model.models)


def test_a_false_proof_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that joined got other answers than alone: said with row and output, in capitals, with exit status 1."""
    model = falsely_proved(tmp_path)
    found = lb.check(model)
    assert isinstance(found, ProgramReport)
    assert found.joinable
    assert found.equal is False
    assert found.merges > 0
    assert any("row " in one and "output" in one for one in found.different)
    monkeypatch.setattr("lazybatch.cli.checks.load", lambda *_, **__: model)
    status, got = run_json(capsys, "check", tmp_path / "program.json")
    assert (status, got["equal"]) == (1, False)
    assert main(["check", str(tmp_path / "program.json")]) == 1
    assert "DIFFERENT answers: row" in capsys.readouterr().out


def test_rows_that_cannot_be_served(tmp_path: Path) -> None:
    """Where every row fails, nothing was compared, and the note says what the first one failed with."""
    model = lb.load(write_program(tmp_path))
    found = lb.check(model, inputs=[{"source": [1, 99], "target": 2}] * 3)
    assert isinstance(found, ProgramReport)
    assert (found.rows, found.failed, found.equal) == (3, 3, None)
    assert any("no row could be served" in note and "encoder" in note for note in found.notes)


def test_words_for_what_differs() -> None:
    """An error on one side, other trips, other shapes and values; equal errors are equal."""
    one = ProgramResult({"y": np.zeros(2)}, (3,), False)
    error = ExecutionError("boom")
    alone = [one, one, one, one, error]
    joined = [
        error,
        ProgramResult({"y": np.zeros(2)}, (4,), False),
        ProgramResult({"y": np.zeros(3)}, (3,), False),
        ProgramResult({"y": np.array([0.0, 0.5])}, (3,), False),
        ExecutionError("boom again"),
    ]
    different, gap = _compared(alone, joined)
    assert different[0] == "row 0: alone an answer, joined ExecutionError (boom)"
    assert different[1] == "row 1: [3] iterations alone, [4] joined"
    assert different[2].startswith("row 2: output 'y' differs")
    assert different[3] == "row 3: output 'y' differs by 0.5"
    assert len(different) == 4
    assert gap == 0.5


def test_inputs_are_for_programs(tmp_path: Path) -> None:
    """A model of one file is compared on the row it was partitioned with."""
    write_program(tmp_path)
    with pytest.raises(InvalidInput, match="is one model"):
        lb.check(lb.load(tmp_path / "step.onnx"), inputs=[{}])
