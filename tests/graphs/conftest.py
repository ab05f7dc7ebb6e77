"""Exported once for all tests of the zoo: its models with loops, and MiniLM."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from graphs.__main__ import main
from graphs.programs import export_program
from graphs.sizes import TINY


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all tiny models with loops."""
    made = tmp_path_factory.mktemp("tiny-zoo")
    for name, size in TINY.items():
        export_program(name, made, size=size)
    return made


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """MiniLM as ONNX, of any batch and length, made by the zoo's command; and what that printed."""
    made = tmp_path_factory.mktemp("minilm")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["export", "--model", "minilm", "--length", "any", "-o", str(made)]) == 0
    return made, json.loads(printed.getvalue())
