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
from lazybatch.errors import ShuttingDown
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
import threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_forked_child_inherits_fails_there_at_once() -> None:
    """Futures of rows that wait, run, or are on their way out fail in the child, for those who wait for them in any
    way, and call nobody back there; results that had come stay. In the parent all is as if nothing had happened."""
    body = """
    import concurrent.futures, os, sys
    called = []
    b = lb.LazyBatcher(slow, max_batch_size=2)
    done = b.submit(0); done.result()
    running = threading.Event()
    def held(values):
        running.set(); time.sleep(0.5)
        return values
    h = lb.LazyBatcher(held, max_batch_size=1)
    futures = [h.submit(k) for k in range(3)] + [b.submit(k) for k in range(4)]
    for future in futures:
        future.add_done_callback(lambda _: called.append(os.getpid()))
    running.wait()
    pid = os.fork()
    if pid == 0:
        ended, rest = concurrent.futures.wait(futures, timeout=5)
        errors = [future.exception(timeout=5) for future in futures[:3]]
        ok = not rest and done.result(timeout=5) == 0 and not called and futures[1].cancel() is False
        ok = ok and all(type(error) is lb.ShuttingDown and "stayed behind" in str(error) for error in errors)
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [future.result() for future in futures] == [0, 1, 2, 0, 1, 2, 3]
    h.shutdown(), b.shutdown()
    assert set(called) == {os.getpid()} and len(called) == 7
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_streams_that_a_forked_child_inherits_end_there() -> None:
    """Behind the steps that had come before the fork the error is raised, in both kinds of streams; in the parent they
    go on."""
    body = """
    import asyncio, os
    from tests.engine.loop_kit import Given, Rounds, expected
    model, given = Rounds(2, (0, 1)), Given(1, (10**9,))
    b = lb.LazyBatcher(model, policy="continuous")
    stream, other = b.stream(given), b.astream(given)
    async def until_the_end(steps):
        async for _ in steps:
            pass
    next(stream)
    pid = os.fork()
    if pid == 0:
        ends = 0
        for read in (lambda: all(step for step in stream), lambda: asyncio.run(until_the_end(other))):
            try:
                read()
            except lb.ShuttingDown as error:
                ends += "stayed behind" in str(error)
        os._exit(ends)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert int(next(stream)["value"]) is not None
    stream.close(), other.close()
    b.shutdown()
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr


def test_a_result_on_its_way_at_a_fork_is_not_waited_for() -> None:
    """A row that had ended, but whose future had not been told: waiting for it raises in the child."""
    engine = Engine([served(AddChain())], GraphBatching(), threaded=False)
    (future,) = engine.submit("chain", rows(1))
    engine._ledger.live.clear()
    engine.abandon()
    with pytest.raises(ShuttingDown, match="stayed behind in another process"):
        future.result(LONG_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_another_thread_starts_a_batcher_leaves_no_lock_behind() -> None:
    """In the child the first call starts a batcher of its own, and a policy that was being claimed is free."""
    body = """
    import os
    entered, go = threading.Event(), threading.Event()
    class Observers:
        def __iter__(self):
            if threading.current_thread() is not threading.main_thread():
                entered.set(); go.wait()
            return iter(())
    from lazybatch.api import claims
    from lazybatch.core.policies import GraphBatching
    policy = GraphBatching()
    d = lb.batched(observers=Observers(), policy=policy)(slow)
    first = threading.Thread(target=lambda: d(1)); first.start(); entered.wait()
    with claims._lock:
        pid = os.fork()
    if pid == 0:
        import faulthandler
        faulthandler.dump_traceback_later(20, exit=True)
        os._exit(0 if d(7) == 7 else 1)
    go.set(); first.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert d(3) == 3
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_that_leaves_the_with_block_says_nothing() -> None:
    """What is open there has failed already, and is nobody's fault."""
    body = """
    import os
    running = threading.Event()
    def held(values):
        running.set(); time.sleep(0.3)
        return values
    pid = None
    with lb.LazyBatcher(held, max_batch_size=1) as b:
        futures = [b.submit(k) for k in range(4)]
        running.wait()
        pid = os.fork()
    if pid == 0:
        ok = all(type(future.exception(timeout=5)) is lb.ShuttingDown for future in futures)
        ok = ok and b.shutdown(drain=False) and b.shutdown()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [future.result() for future in futures] == [0, 1, 2, 3]
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert (done.returncode, done.stderr) == (0, "")
