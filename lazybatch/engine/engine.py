"""The live engine: admission, futures, and the one thread that serves them.

Owns: `Engine`: what callers of any thread may do (submit, cancel, stats, shutdown), the life of its threads, and what
happens to forgotten engines at interpreter exit.
Must not know: how nodes run, what the scheduler decides (`engine.driver` carries that out), models' files.

Threads: the engine thread, the delivery thread (with the first results that come while another node is ready to run),
the timer thread (with the first hard limit), worker threads (with the first callable). All are daemons; at interpreter
exit every engine still alive is shut down and waited for briefly, so that none of them is stopped in the middle of a
runtime's native code.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic

from lazybatch.core.policies.base import Policy
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.scheduler import Decision, Scheduler
from lazybatch.engine import lifetime
from lazybatch.engine.clock import Clock, MonotonicClock
from lazybatch.engine.delivery import Delivery
from lazybatch.engine.driver import Driver
from lazybatch.engine.entry import Entry, Event, RequestFuture
from lazybatch.engine.ledger import Ledger
from lazybatch.engine.listening import Listener, Step
from lazybatch.engine.mailbox import Arrived, Close, Mailbox, Refused, Withdrawn
from lazybatch.engine.served import ServedModel
from lazybatch.engine.stats import Stats
from lazybatch.engine.timers import Timers
from lazybatch.engine.workers import Workers
from lazybatch.errors import DeadlineExceeded, InvalidInput, LazyBatchError, Overloaded, SelfWait, ShuttingDown
from lazybatch.executors.base import Row
from lazybatch.metrics import Observer, Outcome

_log = logging.getLogger("lazybatch.engine")

_RESETS_MAX = 3
_LAST_DELIVERIES_S = 1.0
"""How long a shutdown whose time is up waits for results that were there before; only a stuck callback makes it."""


class Engine:
    """Serves several models with one scheduler.

    threaded: False for an engine that moves only by `step` (with a `SteppedClock`, a trace is replayed exactly).
    processors: tasks at once; more than one only where all models are pooled one-node models.
    on_end: called once, when the last row has ended and no thread runs any more nodes.

    Raises `InvalidInput` for contradicting options (see `Scheduler`).
    """

    def __init__(
        self,
        served: Sequence[ServedModel],
        policy: Policy,
        *,
        processors: int = 1,
        isolate_failures: bool = True,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        threaded: bool = True,
        name: str = "lazybatch",
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._name = name
        self._threaded = threaded
        self._lanes = {(one.called, one.spec.length): one.spec.graph.model for one in served}
        self._specs = {one.called: one.spec for one in served}
        self._own_threads: set[int] = set()
        self._ids = itertools.count()
        self._closed: str | None = None
        self._ended = threading.Event()
        self._mailbox = Mailbox()
        observers = tuple(observers)
        self._watched = bool(observers)
        self._ledger = Ledger(self._specs, {lane: place for place, lane in self._lanes.items()})
        self._timers = Timers(self._clock, self._expire, self._start_thread if threaded else None)
        self._workers = None
        if threaded and any(one.pooled for one in served):
            self._workers = Workers(processors, self._clock, self._mailbox, self._start_thread)

        def make_scheduler() -> Scheduler:
            specs = [one.spec for one in served]
            return Scheduler(specs, policy, processors=processors, isolate_failures=isolate_failures)

        self._delivery = Delivery(self._start_thread if threaded else None, self._ledger.catch_up)
        self._driver = Driver(
            served, make_scheduler, self._ledger, self._mailbox, self._clock, observers, self._workers, self._delivery
        )
        self.abandoned = False
        self._resets = 0
        self._on_end = on_end
        if threaded:
            lifetime.alive.add(self)
            self._start_thread(self._run, "engine")

    # -- what callers do -----------------------------------------------------------------------------------------

    def submit(
        self,
        model: str,
        rows: Sequence[Row],
        *,
        sla_ns: int | None = None,
        limit_ns: int | None = None,
        priority: int = 0,
        arrival_ns: int | None = None,
        sink: Callable[[Step], object] | None = None,
    ) -> list[RequestFuture]:
        """Admit all rows of a call or none; one future per row. Never blocks.

        sla_ns: soft target from now, None for the model's. limit_ns: hard limit as a clock reading.
        arrival_ns: when the rows came, for replays; None for now.
        sink: called with every step of the row, the only one of the call, before its future resolves; see `Listener`.
        Futures of rows that are not admitted have already failed: `Overloaded`, `DeadlineExceeded`, `ShuttingDown`.
        """
        spec = self._specs.get(model)
        if spec is None:
            raise InvalidInput(f"unknown model {model!r}; known are {', '.join(map(repr, self._specs))}")
        lanes = [self._lanes[model, row.length] for row in rows]
        futures = [RequestFuture(on_own_thread=self._in_vain) for _ in rows]
        with self._ledger.lock:
            now = self._clock.now_ns() if arrival_ns is None else arrival_ns
            target_ns = spec.sla_ns if sla_ns is None else sla_ns
            deadline_ns = UNBOUNDED_NS if target_ns is None else now + target_ns
            if limit_ns is not None:
                deadline_ns = min(deadline_ns, limit_ns)
            requests = [
                Request(next(self._ids), lane, now, deadline_ns, row.signature, row.size, priority, row.trips)
                for row, lane in zip(rows, lanes, strict=True)
            ]
            refusal = self._refusal(model, len(rows), limit_ns, now)
            if refusal is None:
                entries = tuple(map(self._entry, requests, rows, futures, itertools.repeat(limit_ns)))
                if sink is not None:
                    entries[0].listener = Listener(sink)
                self._ledger.admit(entries)
                self._mailbox.post(Arrived(entries))
            else:
                self._ledger.reject(model, len(rows), _CAUSES[type(refusal)])
                if self._watched and not self._ended.is_set():  # behind the end nobody reads it
                    self._mailbox.post(Refused(tuple(requests)))
        if refusal is not None:
            for future in futures:
                future.fail(type(refusal)(*refusal.args))
            return futures
        if limit_ns is not None:
            for entry in entries:
                self._timers.add(entry)
        return futures

    def reject_invalid(self, model: str, rows: int) -> None:
        """Count rows whose inputs were refused before they came here."""
        self._ledger.reject(model, rows, "invalid")

    def stats(self) -> Stats:
        """A consistent snapshot; from any thread."""
        return self._ledger.snapshot()

    def decisions(self) -> list[Decision]:
        """The scheduler's decision log as it is now; from any thread."""
        while True:
            try:
                return list(self._driver.scheduler.decisions)
            except RuntimeError:  # the engine thread added one meanwhile
                continue

    def on_own_thread(self) -> bool:
        """Whether the caller runs on one of this engine's threads (also in a callable or a future's callback)."""
        return threading.get_ident() in self._own_threads

    def _in_vain(self) -> bool:
        """Whether waiting for a result here would never end; raises `ShuttingDown` in a forked child."""
        if self.abandoned:  # a row that had ended, and whose result was on its way to the future
            raise ShuttingDown(self._left_behind())
        return self.on_own_thread()

    def _left_behind(self) -> str:
        return f"the row stayed behind in another process: {self._closed}"

    def refuse_self_wait(self, what: str) -> None:
        """Raise `SelfWait` when ``what`` is called on one of this engine's own threads."""
        if self.on_own_thread():
            raise SelfWait(f"{what} was called on one of the batcher's own threads and would wait for itself")

    @property
    def ended(self) -> bool:
        """Whether no thread of this engine runs any more."""
        return self._ended.is_set()

    def _refusal(self, model: str, rows: int, limit_ns: int | None, now: int) -> LazyBatchError | None:
        if self._closed is not None:
            return ShuttingDown(self._closed)
        if limit_ns is not None and limit_ns <= now:
            return DeadlineExceeded(f"model {model!r}: the time limit had passed {(now - limit_ns) / 1e6:.1f} ms ago")
        capacity, waiting = self._specs[model].queue_capacity, self._ledger.waiting(model)
        if waiting + rows > capacity:
            never = "; a call of that many rows can never fit" if rows > capacity else ""
            return Overloaded(f"model {model!r}: {waiting} of {capacity} rows wait, {rows} more do not fit{never}")
        return None

    def _entry(self, request: Request, row: Row, future: RequestFuture, limit_ns: int | None) -> Entry:
        entry = Entry(request, row, limit_ns, future)
        future.bind(partial(self._cancel, entry), partial(self._ledger.running, entry))
        return entry

    # -- ends that do not wait for the engine thread -----------------------------------------------------------------

    def _cancel(self, entry: Entry) -> bool:
        return self._end(entry, Event.CANCEL, Outcome.CANCELLED)

    def _expire(self, entry: Entry) -> None:
        if self._end(entry, Event.EXPIRE, Outcome.EXPIRED):
            request = entry.request
            after_ms = ((entry.limit_ns or 0) - request.arrival_ns) / 1e6
            where = "while it waited in the queue" if entry.first_dispatch_ns is None else "while it was being run"
            entry.future.fail(
                DeadlineExceeded(f"model {request.model!r}: the limit of {after_ms:.1f} ms passed {where}")
            )

    def _end(self, entry: Entry, event: Event, outcome: Outcome) -> bool:
        with self._ledger.lock:
            ended = self._ledger.move(entry, event, self._clock.now_ns())
            if ended:
                # Posted before the lock is given up: whoever takes the freed place is queued behind this message.
                self._mailbox.post(Withdrawn(entry, outcome))
        return ended

    def _end_waiting(self, *, running: bool) -> None:
        """Fail with `ShuttingDown` what waits, and with ``running`` also what is in flight.

        What callbacks raise on a caller's thread, `KeyboardInterrupt` for one, is raised when all rows have been told.
        """
        with self._ledger.lock:
            entries = [entry for entry in self._ledger.open_entries() if running or entry.waiting]
            ended = [entry for entry in entries if self._end(entry, Event.CANCEL, Outcome.CANCELLED)]
        raised: BaseException | None = None
        for entry in ended:
            try:
                entry.future.fail(ShuttingDown("the batcher was shut down before this row was done"))
            except BaseException as error:  # a callback's, on a caller's thread; the rows behind it must not be lost
                if raised is None:  # not `or`: it may say of itself that it is false
                    raised = error
        if raised is not None:
            raise raised

    # -- shutdown ------------------------------------------------------------------------------------------------

    def close(self, drain: bool = True) -> None:
        """Ask the engine to end, without waiting and without taking a lock (finalizers call this)."""
        self._closed = self._closed or "the batcher is shut down"
        if not self._ended.is_set():
            self._mailbox.post(Close(drain))

    def shutdown(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Close admission, then wait for the end. See `LazyBatcher.shutdown`."""
        self.refuse_self_wait("shutdown")
        if self.abandoned:
            return True  # nothing runs here, and what was open has failed
        until = None if timeout is None else monotonic() + timeout
        with self._ledger.lock:  # rows admitted before are ahead of the message, none are admitted after
            self.close(drain)
        if not drain:
            self._end_waiting(running=False)
        if not self._threaded:
            while not self._ended.is_set():
                self.step_and_wait()
        ended = self._ended.wait(None if until is None else max(0.0, until - monotonic()))
        if not ended:
            self._mailbox.post(Close(drain=False))
        self._end_waiting(running=True)  # none are left, unless time is up or the engine thread died
        if not ended:
            self._delivery.wait(_LAST_DELIVERIES_S)
        return ended

    # -- the engine's own thread ---------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn of the loop, for engines without a thread: whether a node ran."""
        if self._threaded:
            raise InvalidInput("this engine has its own thread; step is for engines made with threaded=False")
        if self._ended.is_set():
            return False
        self._timers.fire(self._clock.now_ns())
        ran = self._turn(self._driver.turn)
        if self._driver.finished:
            self._end_threads()
        return ran

    def next_wakeup_ns(self) -> int | None:
        """After `step` returned False: when to call it again at the latest; None: when something was submitted."""
        times = (self._driver.next_wakeup_ns(), self._timers.next_ns())
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def step_and_wait(self) -> None:
        """One turn; when nothing ran, wait (or let the stepped clock jump) until there may be something."""
        if not self.step() and not self._ended.is_set():
            self._clock.wait(self._mailbox, self.next_wakeup_ns())

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for tests and for engines without a thread; nobody else may touch it."""
        return self._driver.scheduler

    def _turn(self, turn: Callable[[], bool]) -> bool:
        """A turn that survives whatever the scheduler or a policy raises."""
        try:
            ran = turn()
            self._resets = 0
            return ran
        except BaseException as error:
            _log.error("the scheduler failed; all its rows fail and it starts anew", exc_info=True)
            self._resets += 1
            if self._resets > _RESETS_MAX:
                raise
            self._driver.reset(error)
            return True

    def _run(self) -> None:
        driver, clock, mailbox = self._driver, self._clock, self._mailbox
        try:
            while True:
                if not self._turn(driver.turn):
                    if driver.finished:
                        return
                    clock.wait(mailbox, driver.next_wakeup_ns())
        except BaseException:
            _log.critical("the engine cannot go on", exc_info=True)
            self._closed = "the engine has failed, see the log"
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        with self._ledger.lock:
            self._closed = self._closed or "the batcher is shut down"
        steps: list[Callable[[], object]] = [self._timers.stop, self._driver.end, self._delivery.stop]
        steps.append(partial(self._end_waiting, running=True))
        if self._workers is not None:
            steps.insert(0, self._workers.stop)
        if self._on_end is not None:
            steps.append(self._on_end)
            self._on_end = None
        try:
            for step in steps:  # most find nothing to do after a drain; none may keep the others from theirs
                try:
                    step()
                except BaseException:
                    _log.error("the engine did not end cleanly", exc_info=True)
        finally:
            lifetime.alive.discard(self)
            self._ended.set()

    def _start_thread(self, body: Callable[[], None], role: str) -> threading.Thread:
        def owned() -> None:
            ident = threading.get_ident()
            self._own_threads.add(ident)
            try:
                body()
            finally:
                self._own_threads.discard(ident)

        thread = threading.Thread(target=owned, name=f"{self._name}-{role}", daemon=True)
        thread.start()
        return thread

    # -- forks and exits -----------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """In a forked child: the threads stayed behind, and with them whatever held the lock."""
        self._ledger.renew_lock()
        self.abandoned = True
        self._closed = "the batcher belongs to the process it was created in; create one after the fork"
        self._own_threads.clear()
        for entry in list(self._ledger.live.values()):
            entry.future.leave_behind(ShuttingDown(self._left_behind()))
        self._ended = threading.Event()
        self._ended.set()


_CAUSES: dict[type[LazyBatchError], str] = {
    Overloaded: "overloaded",
    DeadlineExceeded: "deadline",
    ShuttingDown: "shutting_down",
}
