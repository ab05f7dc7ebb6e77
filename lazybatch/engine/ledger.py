"""The ledger: who is where, counted exactly, under one lock.

Owns: `Ledger`: admission by rows, the moves of entries, all counters, and the one lock that guards them.
Must not know: the scheduler, executors, futures' results, threads.

Counts are kept per state, and an entry is counted where it stands; so "accepted = queued + in flight + ended" holds by
construction at every moment. The lock is re-entrant because a garbage collection inside a locked section may run a
finalizer that cancels a future.

What the engine thread reports of running nodes is noted without the lock, in order, and entered in the books by whoever
needs them next, so that the engine thread neither waits for callers nor counts while the processor is idle. Every
method that reads or moves catches up first: nobody can tell the difference.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from types import MappingProxyType
from typing import Any

from lazybatch.core.task import Completion, Merge, Task
from lazybatch.engine.answers import Finished
from lazybatch.engine.entry import Entry, Event, State
from lazybatch.engine.stats import Stats
from lazybatch.metrics import Meter, ModelStats, Outcome

_log = logging.getLogger("lazybatch.engine")

REJECTIONS = ("overloaded", "deadline", "shutting_down", "invalid")

OUTCOMES = {
    State.COMPLETED: Outcome.COMPLETED,
    State.FAILED: Outcome.FAILED,
    State.CANCELLED: Outcome.CANCELLED,
    State.EXPIRED: Outcome.EXPIRED,
    State.DROPPED: Outcome.DROPPED,
}

_NOTES_MAX = 4096
"""Notes after which the engine thread catches up itself; reached only where nobody ever asks or gets a result."""


@dataclass(slots=True)
class _Counts:
    accepted: int = 0
    retried: int = 0
    padding_rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    states: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTIONS, 0))

    def add(self, other: _Counts) -> None:
        self.accepted += other.accepted
        self.retried += other.retried
        self.padding_rows += other.padding_rows
        self.tokens += other.tokens
        self.padded_tokens += other.padded_tokens
        for state, rows in other.states.items():
            self.states[state] += rows
        for cause, rows in other.rejected.items():
            self.rejected[cause] += rows


class Ledger:
    """Counters and live entries of all models. Hold `lock` around several calls that must be one step.

    policy_failures: decisions the policy could not make; written by the engine thread alone.
    live: entries by request id that have not ended, as far as the books go; see `open_entries`.
    lanes: what the scheduler sees of a model under other names, with the model's and the length that rows are padded
    to there.
    """

    def __init__(
        self, models: Iterable[str], lanes: Mapping[str, tuple[str, int | None]] = MappingProxyType({})
    ) -> None:
        self.lock = RLock()
        self.live: dict[int, Entry] = {}
        self.policy_failures = 0
        self._counts = {model: _Counts() for model in models}
        self._served = {model: (model, None) for model in self._counts} | dict(lanes)
        self._meter = Meter()
        self._notes: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._catching_up = False

    def waiting(self, model: str) -> int:
        """Rows that take a place of the queue's capacity."""
        self.catch_up()
        return self._counts[model].states[State.WAITING]

    def reject(self, model: str, rows: int, cause: str) -> None:
        """Count rows that are not admitted."""
        with self.lock:
            self._counts[model].rejected[cause] += rows

    def admit(self, entries: Iterable[Entry]) -> None:
        """Count rows as accepted and waiting."""
        with self.lock:
            for entry in entries:
                counts = self._counts[self._served[entry.request.model][0]]
                counts.accepted += 1
                counts.states[State.WAITING] += 1
                self.live[entry.request.id] = entry

    def move(self, entry: Entry, event: Event, now_ns: int) -> bool:
        """Move an entry; False when it had ended before. The caller that gets True for a final event resolves it."""
        with self.lock:
            self.catch_up()
            return self._move(entry, event, now_ns)

    def open_entries(self) -> list[Entry]:
        """Entries that have not ended."""
        with self.lock:
            self.catch_up()
            return list(self.live.values())

    def running(self, entry: Entry) -> bool:
        """Whether the row is in a sub-batch."""
        self.catch_up()
        return entry.running

    def _move(self, entry: Entry, event: Event, now_ns: int) -> bool:
        before = entry.state
        if not entry.move(event):
            return False
        request, after = entry.request, entry.state
        counts = self._counts[self._served[request.model][0]]
        counts.states[before] -= 1
        counts.states[after] += 1
        if after is State.RUNNING:
            if entry.first_dispatch_ns is None:
                entry.first_dispatch_ns = now_ns
        elif after is State.RETRYING:
            counts.retried += 1
        else:
            del self.live[request.id]
            self._meter.exited(now_ns, request, OUTCOMES[after], entry.first_dispatch_ns)
        return True

    # -- what the engine thread reports ------------------------------------------------------------------------------

    def opened(self, task: Task, entries: Sequence[Entry], now_ns: int) -> None:
        """A sub-batch starts with these entries; those that have ended meanwhile stay ended."""
        self._note(self._opened, task, entries, now_ns)

    def _opened(self, task: Task, entries: Sequence[Entry], now_ns: int) -> None:
        for entry in entries:
            if entry.waiting:
                self._move(entry, Event.START, now_ns)
        model, length = self._served[task.model]
        if length is not None:
            self._counts[model].tokens += sum([entry.request.size for entry in entries])
            self._counts[model].padded_tokens += length * len(entries)
        self._meter.opened(now_ns, task)
        if task.preempted is not None:
            self._meter.preempted(now_ns, task)

    def finished(self, finished: Finished, now_ns: int) -> None:
        """Rows came to their end; those that have ended meanwhile stay as they are."""
        self._note(self._finished, finished, now_ns)

    def _finished(self, finished: Finished, now_ns: int) -> None:
        for entry, event in finished.ends():
            self._move(entry, event, now_ns)

    def dispatched(self, task: Task, start_ns: int, end_ns: int, failed: bool) -> None:
        """A node ran."""
        notes = self._notes
        notes.append((self._dispatched, (task, start_ns, end_ns, failed)))
        if len(notes) >= _NOTES_MAX:
            self.catch_up()

    def _dispatched(self, task: Task, start_ns: int, end_ns: int, failed: bool) -> None:
        self._meter.dispatched(start_ns, end_ns, task, failed)
        self._counts[self._served[task.model][0]].padding_rows += task.padded_rows - task.rows

    def stepped(self, task: Task, completion: Completion, now_ns: int) -> None:
        """An iteration of a loop is over."""
        self._notes.append((self._meter.stepped, (now_ns, task, completion)))

    def merged(self, merge: Merge, now_ns: int) -> None:
        """Two sub-batches became one."""
        self._note(self._meter.merged, now_ns, merge)

    def _note(self, enter: Callable[..., None], *arguments: Any) -> None:
        self._notes.append((enter, arguments))
        if len(self._notes) >= _NOTES_MAX:
            self.catch_up()

    def catch_up(self) -> None:
        """Enter what has been noted in the books."""
        if not self._notes:
            return
        with self.lock:
            if self._catching_up:
                return  # a finalizer's call, in the middle of a note: it comes before those that are left
            self._catching_up = True
            try:
                while self._notes:
                    enter, arguments = self._notes[0]
                    try:
                        enter(*arguments)
                    except Exception:
                        _log.error("the books could not be kept", exc_info=True)
                    # Only now: when a caller's thread is interrupted in a note, the next one enters it again.
                    self._notes.popleft()
            finally:
                self._catching_up = False

    def renew_lock(self) -> None:
        """In a forked child: whoever held the lock stayed behind."""
        self.lock = RLock()
        self._catching_up = False

    def snapshot(self) -> Stats:
        """Everything at one moment."""
        with self.lock:
            self.catch_up()
            lanes: dict[str, list[str]] = {model: [] for model in self._counts}
            for lane, (model, _) in self._served.items():
                lanes[model].append(lane)
            models = {model: _stats(counts, self._meter.of(*lanes[model])) for model, counts in self._counts.items()}
            total = _Counts()
            for counts in self._counts.values():
                total.add(counts)
            return _stats(total, self._meter.total(), models, self.policy_failures)


def _stats(
    counts: _Counts, seen: ModelStats, models: dict[str, Stats] | None = None, policy_failures: int = 0
) -> Stats:
    states = counts.states
    return Stats(
        queued=states[State.WAITING] + states[State.RETRYING],
        in_flight=states[State.RUNNING],
        accepted=counts.accepted,
        rejected=MappingProxyType(dict(counts.rejected)),
        completed=states[State.COMPLETED],
        failed=states[State.FAILED],
        cancelled=states[State.CANCELLED],
        expired=states[State.EXPIRED],
        dropped=states[State.DROPPED],
        retried=counts.retried,
        violations=seen.violations,
        batches=seen.sub_batches,
        dispatches=seen.dispatches,
        mean_rows=seen.mean_rows,
        padding_rows=counts.padding_rows,
        tokens=counts.tokens,
        padded_tokens=counts.padded_tokens,
        reasons=seen.reasons,
        preemptions=seen.preemptions,
        merges=seen.merges,
        steps=seen.steps,
        iterations=seen.iterations,
        left_early=seen.left_early,
        truncated=seen.truncated,
        policy_failures=policy_failures,
        queue_wait=seen.queue_wait,
        service=seen.service,
        latency=seen.latency,
        models=MappingProxyType(models or {}),
    )
