"""Exported once for all tests of the zoo's models with loops."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.programs import export_program
from graphs.sizes import TINY


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all tiny models with loops."""
    made = tmp_path_factory.mktemp("tiny-zoo")
    for name, size in TINY.items():
        export_program(name, made, size=size)
    return made
