"""Running command lines in a test.

Owns: `run_json` and `refused`: what every command promises of its output.
Must not know: any command.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lazybatch.cli import main


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    """Exit status and the one JSON object on stdout."""
    status = main([*map(str, argv), "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one object, one line"
    return status, json.loads(out)


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The one line that a refused command line prints; nothing on stdout, exit status 2."""
    status = main([*map(str, argv)])
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]
