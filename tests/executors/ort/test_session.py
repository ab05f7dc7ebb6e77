"""Sessions: one pool per process, errors in one line. What happens once per process is tried in its own processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort import session as ort_session
from lazybatch.executors.ort.session import open_session, provider_names, reason, runtime
from tests.executors.partitions import residual

ROOT = Path(__file__).resolve().parents[3]

PREAMBLE = """
import onnxruntime as ort, sys
from pathlib import Path
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort.session import open_session
model = Path(sys.argv[1])

def plain(per_session=True):
    options = ort.SessionOptions()
    options.use_per_session_threads = per_session
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"], enable_fallback=0)

def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise SystemExit(f"expected {kind.__name__}")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small whole model."""
    return residual(tmp_path).directory / "whole.onnx"


def in_a_process(model: Path, script: str) -> None:
    """Run a script in a fresh process; it fails by raising."""
    command = [sys.executable, "-W", "error", "-c", PREAMBLE + script, str(model)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_all_sessions_share_one_pool(model: Path) -> None:
    """The first session makes the pool; asking for another size later is refused, asking for the same is not."""
    in_a_process(
        model,
        """
open_session(model, optimise=True, threads=2)
open_session(model, optimise=False)
open_session(model, optimise=False, threads=2)
text = refused(lambda: open_session(model, optimise=False, threads=3), InvalidInput)
assert "threads=3" in text and "already has 2" in text, text
plain(per_session=False)
""",
    )


def test_sessions_opened_by_others_before_keep_working(model: Path) -> None:
    """Another library's session is older than the pool: both go on."""
    in_a_process(
        model,
        """
import numpy as np
theirs = plain()
ours = open_session(model, optimise=True)
feeds = {"x": np.ones((1, 3, 2), np.float32), "t": np.array(1, np.float32)}
assert np.array_equal(theirs.run(None, feeds)[0], ours.run(None, feeds)[0])
""",
    )


def test_a_pool_made_by_others_is_used(model: Path) -> None:
    """Where the process already has a global pool, sessions join it, also those that asked for one thread."""
    in_a_process(
        model,
        """
ort.set_global_thread_pool_sizes(2, 1)
open_session(model, optimise=True, threads=1)
open_session(model, optimise=True)
""",
    )


def test_one_thread_makes_no_pool(model: Path) -> None:
    """With threads=1 nothing process-wide is decided: other code may open sessions as it likes."""
    in_a_process(
        model,
        """
open_session(model, optimise=True, threads=1)
plain()
ort.set_global_thread_pool_sizes(2, 1)
""",
    )


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_absurd_thread_counts_are_refused(model: Path, threads: object) -> None:
    """Anything but a positive integer is the caller's fault."""
    with pytest.raises(InvalidInput, match="threads must be a positive integer"):
        open_session(model, optimise=True, threads=threads)  # type: ignore[arg-type]


def test_a_pool_that_would_stand_still_is_refused(model: Path) -> None:
    """Thousands of spinning threads on a few cores never get a model loaded; that is said at once."""
    with pytest.raises(InvalidInput, match="threads=1000000: more than"):
        open_session(model, optimise=True, threads=10**6)


def test_unreadable_models_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    """Missing, truncated and foreign files: one line that says which file, and ONNX Runtime's reason."""
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(model.read_bytes()[:100])
    for path in (tmp_path / "missing.onnx", truncated):
        with pytest.raises(ModelError, match=path.name) as caught:
            open_session(path, optimise=True)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="the model in memory"):
        open_session(b"no model", optimise=True)


def test_weights_of_a_saved_model_lie_beside_it(model: Path, tmp_path: Path) -> None:
    """`save_to` writes a model that loads again and computes the same."""
    saved = tmp_path / "saved" / "model.onnx"
    saved.parent.mkdir()
    first = open_session(model.read_bytes(), optimise=True, save_to=saved, folder=model.parent)
    again = open_session(saved, optimise=False)
    feeds = {"x": np.ones((2, 3, 4), np.float32), "t": np.array(2, np.float32)}
    for one, other in zip(first.run(None, feeds), again.run(None, feeds), strict=True):
        assert np.array_equal(one, other)


def test_a_profile_is_written_where_asked(model: Path, tmp_path: Path) -> None:
    """`profile_to` is the prefix of the per-operator profile."""
    session = open_session(model, optimise=False, profile_to=tmp_path / "profile")
    session.run(None, {"x": np.ones((2, 3, 4), np.float32), "t": np.array(2, np.float32)})
    assert Path(session.end_profiling()).parent == tmp_path


def test_what_does_not_last_gives_its_memory_back(model: Path) -> None:
    """A session that is run once on much and dropped leaves the process as large as it was."""
    in_a_process(
        model,
        """
import gc, numpy as np
from lazybatch.executors.resident import resident_bytes
rows = {"x": np.ones((4, 3, 1_000_000), np.float32), "t": np.array(1, np.float32)}
before = resident_bytes()
session = open_session(model, optimise=False, lasting=False)
answers = session.run(None, rows)
assert resident_bytes() - before > rows["x"].nbytes
del session, answers
gc.collect()
assert resident_bytes() - before < rows["x"].nbytes / 2
""",
    )


def test_providers_are_checked_before_use() -> None:
    """The CPU is always the last resort; a provider that is not installed is named with what there is."""
    assert provider_names(None) == provider_names("cpu") == provider_names(["CPUExecutionProvider"])
    assert provider_names(None) == [ort_session.CPU]
    with pytest.raises(InvalidInput, match=r"'NoSuchProvider' is not available here.*CPUExecutionProvider"):
        provider_names("NoSuchProvider")


def test_a_missing_runtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime there is one clear line."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"pip install lazybatch\[onnx\]"):
        runtime()


def test_reasons_are_one_line_without_prefixes() -> None:
    """ONNX Runtime's nested status texts are reduced to the last and plainest, and to the operator."""
    text = (
        "Error in execution: Non-zero status code returned while running Gather node. Name:'g'\n"
        "Status Message: indices element out of data bounds, idx=9"
    )
    assert reason(RuntimeError(text)) == "operator Gather: indices element out of data bounds, idx=9"
    assert reason(RuntimeError("[ONNXRuntimeError] : 3 : NO_SUCHFILE : x failed")) == "3 : NO_SUCHFILE : x failed"
    assert reason(ValueError("plain")) == "plain"
