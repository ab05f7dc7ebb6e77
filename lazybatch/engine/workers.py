"""Workers: threads that run callables, so that the engine thread stays free to admit, cancel and expire.

Owns: `Workers` (a pool of daemon threads) and `execute` (one task on one executor, whatever it raises).
Must not know: the scheduler, futures.

Not `concurrent.futures.ThreadPoolExecutor`: its threads are joined at interpreter exit, and a callable that never
returns would then keep the process from ending.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

from lazybatch.core.task import Task
from lazybatch.engine.clock import Clock
from lazybatch.engine.mailbox import Mailbox, Ran
from lazybatch.executors.base import Executor, Row

_log = logging.getLogger("lazybatch.engine")


class Job(NamedTuple):
    """A task and what it runs on. rows: of a sub-batch that opens, else None. last: this node is the last one."""

    task: Task
    executor: Executor
    rows: Mapping[int, Row] | None
    last: bool
    generation: int


def execute(job: Job, opened: Callable[[], None] | None = None) -> tuple[dict[int, Any] | None, BaseException | None]:
    """Run one node; returns (results after the last node else None, what was raised or None). Never raises.

    opened: called right before the node runs, when its rows have been gathered.
    """
    task, executor = job.task, job.executor
    try:
        if job.rows is not None:
            executor.open(task.sub_batch, job.rows, task.padded_rows)
        if opened is not None:
            opened()
        executor.run(task.sub_batch, task.node)
        return (executor.close(task.sub_batch) if job.last else None), None
    except BaseException as error:  # SystemExit, KeyboardInterrupt and MemoryError of a callable end its rows, not us
        return None, error


class Workers:
    """At most ``count`` threads, started as jobs come; each posts what became of its job."""

    def __init__(
        self,
        count: int,
        clock: Clock,
        mailbox: Mailbox,
        start_thread: Callable[[Callable[[], None], str], threading.Thread],
    ) -> None:
        self._count = count
        self._clock = clock
        self._mailbox = mailbox
        self._start_thread = start_thread
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def put(self, job: Job) -> None:
        """Hand out a job; called by the engine thread only. Without any thread to run it, it has failed."""
        if len(self._threads) < self._count:
            try:
                self._threads.append(self._start_thread(self._run, f"worker-{len(self._threads)}"))
            except Exception as error:  # out of threads or memory; the next job tries again
                if not self._threads:
                    now_ns = self._clock.now_ns()
                    self._mailbox.post(Ran(job.task, job.generation, now_ns, now_ns, None, error))
                    return
                _log.warning("no further worker thread could be started", exc_info=True)
        self._jobs.put(job)

    def stop(self) -> None:
        """End the threads once they have nothing to do."""
        for _ in self._threads:
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            start_ns = self._clock.now_ns()
            results, error = execute(job)
            self._mailbox.post(Ran(job.task, job.generation, start_ns, self._clock.now_ns(), results, error))
            del job, results, error  # while this thread waits, it keeps no row alive
