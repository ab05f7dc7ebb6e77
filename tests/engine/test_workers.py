"""Workers: jobs run somewhere else, and whatever happens is posted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lazybatch.core.task import Reason, Task
from lazybatch.engine.clock import MonotonicClock
from lazybatch.engine.mailbox import Mailbox, Ran
from lazybatch.engine.workers import Job, Workers, execute
from lazybatch.executors.base import Row
from lazybatch.executors.callable import CallableModel


def job(fn: Callable[[list[int]], list[int]], sub_batch: int, *values: int) -> Job:
    """A call of ``fn`` with these values, request ids 0, 1, ..."""
    count = len(values)
    task = Task("m", sub_batch, 0, count, count, tuple(range(count)), None, Reason.START_IDLE)
    executor = CallableModel(fn).executor(max_batch_size=8)
    return Job(task, executor, {k: Row(value) for k, value in enumerate(values)}, True, 4)


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_execute_never_raises(kind: type[BaseException]) -> None:
    """Whatever a callable raises is the job's outcome, not the thread's end."""

    def fn(values: list[int]) -> list[int]:
        raise kind("no")

    results, error = execute(job(fn, 0, 1))
    assert results is None
    assert type(error) is kind


def test_jobs_run_on_as_many_threads_as_allowed_and_report() -> None:
    """Two workers run two calls at once; each posts results by request, with the generation it was given."""
    mailbox, threads = Mailbox(), []
    both = threading.Barrier(2, timeout=30)

    def start(body: Callable[[], None], role: str) -> threading.Thread:
        thread = threading.Thread(target=body, name=role, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    def fn(values: list[int]) -> list[int]:
        both.wait()
        return [value * 2 for value in values]

    workers = Workers(2, MonotonicClock(), mailbox, start)
    for sub_batch in range(4):
        workers.put(job(fn, sub_batch, 1, 2))
    seen = []
    for _ in range(4):
        mailbox.wait(30)
        message = mailbox.next()
        assert isinstance(message, Ran)
        assert message.results == {0: 2, 1: 4}
        assert message.error is None
        assert message.generation == 4
        assert message.end_ns >= message.start_ns
        seen.append(message.task.sub_batch)
    assert sorted(seen) == [0, 1, 2, 3]
    workers.stop()
    for thread in threads:
        thread.join(30)
    assert [thread.is_alive() for thread in threads] == [False, False]


class Refusing:
    """Starts threads, but not all that it is asked for."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.threads: list[threading.Thread] = []

    def __call__(self, body: Callable[[], None], role: str) -> threading.Thread:
        """Start one, or say as Python does that there is none."""
        if not self.answers.pop(0):
            raise RuntimeError("can't start new thread")
        self.threads.append(threading.Thread(target=body, name=role, daemon=True))
        self.threads[-1].start()
        return self.threads[-1]


def ran(mailbox: Mailbox) -> Ran:
    """The next report."""
    mailbox.wait(30)
    message = mailbox.next()
    assert isinstance(message, Ran)
    return message


def test_without_a_thread_to_be_had_only_that_job_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The job is reported as failed and is not run later; the next one tries again; with one thread it goes on."""
    mailbox, start = Mailbox(), Refusing(False, True, False)
    workers, calls = Workers(2, MonotonicClock(), mailbox, start), list[list[int]]()

    def fn(values: list[int]) -> list[int]:
        calls.append(values)
        return values

    workers.put(job(fn, 0, 1))
    failed = ran(mailbox)
    assert (failed.task.sub_batch, failed.results, failed.generation) == (0, None, 4)
    assert isinstance(failed.error, RuntimeError)
    assert failed.end_ns >= failed.start_ns
    for sub_batch, value in ((1, 2), (2, 3)):
        workers.put(job(fn, sub_batch, value))
        assert ran(mailbox).results == {0: value}
    assert calls == [[2], [3]]
    assert len(start.threads) == 1
    assert "no further worker thread" in caplog.text
    workers.stop()
    start.threads[0].join(30)
    assert not start.threads[0].is_alive()
