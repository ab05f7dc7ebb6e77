"""Engines nobody ended: collected, left behind at interpreter exit, or carried over a fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import pytest

from lazybatch.core.policies import GraphBatching
from lazybatch.engine import Engine
from tests.engine.kit import LONG_S, AddChain, rows, served

ROOT = Path(__file__).resolve().parents[2]


def test_an_ended_engine_leaves_nothing_behind() -> None:
    """Threads end, and neither a future nor the module keeps the engine or its model alive."""
    engine = Engine([served(AddChain())], GraphBatching(), name="ending")
    (future,) = engine.submit("chain", rows(1), limit_ns=engine._clock.now_ns() + 10**12)
    future.result(LONG_S)
    assert engine.shutdown(timeout=LONG_S)
    for thread in threading.enumerate():
        if thread.name.startswith("ending-"):
            thread.join(LONG_S)
    assert not any(thread.name.startswith("ending-") for thread in threading.enumerate())
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None
    assert future.result() == 112.0


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own; a hang fails by the timeout."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        cwd=ROOT,
        check=False,
    )


PREAMBLE = """
import threading, time
import lazybatch as lb
def slow(values):
    time.sleep(0.02)
    return values
"""


@pytest.mark.parametrize(
    "body",
    [
        "b = lb.LazyBatcher(slow); fs = [b.submit(k) for k in range(100)]",
        "b = lb.LazyBatcher(slow, workers=3); fs = [b.submit(k, timeout=9) for k in range(100)]; fs[0].result()",
        "b = lb.LazyBatcher(slow); b.predict(1); b.cycle = b",
        "b = lb.LazyBatcher(lambda v: time.sleep(3600)); b.submit(1); time.sleep(0.05)",
        "f = lb.LazyBatcher(slow).submit(1)",
        "b = lb.LazyBatcher(slow); b.submit(1).add_done_callback(lambda f: b.submit(2))",
        "b = lb.LazyBatcher(slow); threading.Thread(target=lambda: print(b.predict(3))).start()",
    ],
)
def test_a_forgotten_batcher_does_not_keep_the_process_from_ending(body: str) -> None:
    """Whatever is left undone at exit, a stuck callable included: the process ends, silently, with status 0."""
    done = run_script(PREAMBLE + body)
    assert (done.returncode, done.stderr) == (0, "")


def test_rows_left_at_exit_still_resolve() -> None:
    """At interpreter exit waiting rows fail with `ShuttingDown`; their callbacks run."""
    body = """
    b = lb.LazyBatcher(slow, max_batch_size=1, queue_capacity=8)
    for k in range(8):
        b.submit(k).add_done_callback(lambda f: print(type(f.exception()).__name__, flush=True))
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    assert len(outcomes) == 8
    assert "ShuttingDown" in outcomes
    assert set(outcomes) <= {"NoneType", "ShuttingDown"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_that_its_batcher_stayed_behind() -> None:
    """In the child submit fails at once instead of waiting for threads that are not there; the decorator restarts."""
    body = """
    import os
    b = lb.LazyBatcher(slow)
    d = lb.batched(slow)
    b.predict(1), d(1)
    pid = os.fork()
    if pid == 0:
        error = b.submit(2).exception(timeout=5)
        ok = type(error) is lb.ShuttingDown and "after the fork" in str(error) and b.shutdown() and d(7) == 7
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert b.predict(3) == 3
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr
