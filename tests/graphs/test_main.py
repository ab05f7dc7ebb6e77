"""The zoo's command line where packages are missing: one line that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graphs.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def test_a_package_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and nothing is traced back."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", "--model", "silero-vad", "-o", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "graphs: no package 'onnx'; this needs torch and onnx: make setup, or pip install 'lazybatch[torch,onnx]'\n"
    )
    assert not list(tmp_path.iterdir())


def test_where_nothing_is_installed() -> None:
    """Not even NumPy, which the zoo's own modules import."""
    script = "import sys\nsys.modules['numpy'] = None\nfrom graphs.__main__ import main\nsys.exit(main(['list']))\n"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("graphs: no package 'numpy")
    assert len(done.stderr.splitlines()) == 1


def test_own_modules_that_are_missing_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is nothing a user could install."""
    monkeypatch.setitem(sys.modules, "graphs.command", None)
    with pytest.raises(ModuleNotFoundError, match=r"graphs\.command"):
        main(["list"])
