"""Delivery: futures are resolved in the order in which their rows ended, by whoever has time for it.

Owns: `Delivery`: answers, and steps of rows in loops, that are due; the thread that passes them on while the engine
thread runs a node.
Must not know: the scheduler, how the books are kept.

Resolving a future wakes its caller, which at once competes for the interpreter with whoever woke it. So the engine
thread first decides what to run next. If that is a node, the delivery thread resolves futures while the node runs; if
it is nothing, the engine thread does so itself, which saves a change of threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from lazybatch.engine.answers import Answer, Answers
from lazybatch.engine.entry import Entry, State
from lazybatch.engine.listening import Heard
from lazybatch.errors import ExecutionError

_log = logging.getLogger("lazybatch.engine")

Due = Answers | Heard

_BACKLOG_MAX = 16
"""Hand-overs that may be unfinished; callbacks that are slower than nodes must not fill the memory with results."""


class Delivery:
    """Answers on their way. All methods but `wait` are for the engine thread.

    due: what is to be handed over or delivered next. backlog: hand-overs that are unfinished.

    start_thread: how the thread is started, with the first hand-over; None: every answer is delivered when it is added.
    catch_up: brings the books up to date; called before futures are resolved, so that a caller who has a result finds
    it counted.
    """

    def __init__(
        self,
        start_thread: Callable[[Callable[[], None], str], threading.Thread] | None,
        catch_up: Callable[[], None],
    ) -> None:
        self._start_thread = start_thread
        self._catch_up = catch_up
        self.due: list[Due] = []
        self._handed: SimpleQueue[list[Due] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self.backlog = 0

    def add(self, due: Due) -> None:
        """Answers or steps are due: they go out after all added before, with the next `hand_over` or `flush`."""
        if self._start_thread is None:
            self._resolve([due])
        else:
            self.due.append(due)

    def hand_over(self) -> None:
        """This thread is about to be busy: the delivery thread takes what is due."""
        if not self.due:
            return
        if self._thread is None and not self._started():
            self.flush()
            return
        answers, self.due = self.due, []
        with self._changed:
            self.backlog += 1
        self._handed.put(answers)

    def flush(self) -> None:
        """This thread has time: deliver what is due here, or behind what the delivery thread is still at."""
        if self.backlog:
            self.hand_over()
            return
        while self.due:  # a callback may lead to further answers
            answers, self.due = self.due, []
            self._resolve(answers)

    def make_room(self) -> None:
        """Wait while too much has been handed over; for the time before the next node is chosen."""
        if self.backlog >= _BACKLOG_MAX:
            with self._changed:
                self._changed.wait_for(lambda: self.backlog < _BACKLOG_MAX)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything handed over has been delivered; whether it has. From any thread but delivery's own."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.backlog, timeout_s)

    def stop(self) -> None:
        """Deliver all that is due, and end the thread."""
        self.flush()
        if self._thread is not None:
            self._handed.put(None)
            self.wait()

    def _started(self) -> bool:
        assert self._start_thread is not None, "without a thread nothing is ever due"
        try:
            self._thread = self._start_thread(self._run, "delivery")
        except Exception:  # out of threads or memory, or the interpreter is ending
            _log.warning("no thread for delivering results could be started", exc_info=True)
            return False
        return True

    def _run(self) -> None:
        while (answers := self._handed.get()) is not None:
            self._resolve(answers)
            del answers  # while this thread waits, it keeps no result alive
            with self._changed:
                self.backlog -= 1
                self._changed.notify_all()

    def _resolve(self, due: list[Due]) -> None:
        """Never raises: it would end the delivery thread, and to the engine thread be a failure of the next node."""
        try:
            self._catch_up()
        except BaseException:
            _log_error("the books could not be brought up to date")
        for answers in due:
            if isinstance(answers, Heard):
                answers.tell()
                continue
            for entry in answers.entries:
                entry.row = None  # its inputs can go
                try:
                    _answer(answers, entry)
                except BaseException:  # the others' answers must not be lost over it
                    _log_error("request %d could not be resolved", entry.request.id)


def _answer(answers: Answers, entry: Entry) -> None:
    try:
        answer = answers.answer(entry)
    except BaseException as cause:
        if entry.state not in (State.COMPLETED, State.FAILED):
            return  # somebody else was faster
        text = f"model {entry.request.model!r}: what became of this row cannot be told"
        _log_error("%s (request %d)", text, entry.request.id)
        error = ExecutionError(text)
        error.__cause__ = cause
        answer = Answer(entry, entry.state, None, error)
    if entry.state is not answer.state:
        return
    if answer.error is None:
        entry.future.deliver(answer.result)
    else:
        entry.future.fail(answer.error)


def _log_error(text: str, *arguments: object) -> None:
    """With the exception at hand. Where not even logging works, whoever waits must still be told."""
    with suppress(BaseException):
        _log.error(text, *arguments, exc_info=True)
