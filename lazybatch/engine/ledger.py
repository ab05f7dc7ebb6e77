"""The ledger: who is where, counted exactly, under one lock.

Owns: `Ledger`: admission by rows, the moves of entries, all counters, and the one lock that guards them.
Must not know: the scheduler, executors, futures' results, threads.

Counts are kept per state, and an entry is counted where it stands; so "accepted = queued + in flight + ended" holds by
construction at every moment. The lock is re-entrant because a garbage collection inside a locked section may run a
finalizer that cancels a future.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import RLock
from types import MappingProxyType

from lazybatch.core.task import Merge, Task
from lazybatch.engine.entry import Entry, Event, State
from lazybatch.engine.stats import Stats
from lazybatch.metrics import Meter, ModelStats, Outcome

REJECTIONS = ("overloaded", "deadline", "shutting_down", "invalid")

OUTCOMES = {
    State.COMPLETED: Outcome.COMPLETED,
    State.FAILED: Outcome.FAILED,
    State.CANCELLED: Outcome.CANCELLED,
    State.EXPIRED: Outcome.EXPIRED,
}


@dataclass(slots=True)
class _Counts:
    accepted: int = 0
    retried: int = 0
    padding_rows: int = 0
    states: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTIONS, 0))

    def add(self, other: _Counts) -> None:
        self.accepted += other.accepted
        self.retried += other.retried
        self.padding_rows += other.padding_rows
        for state, rows in other.states.items():
            self.states[state] += rows
        for cause, rows in other.rejected.items():
            self.rejected[cause] += rows


class Ledger:
    """Counters and live entries of all models. Hold `lock` around several calls that must be one step."""

    def __init__(self, models: Iterable[str]) -> None:
        self.lock = RLock()
        self.live: dict[int, Entry] = {}
        self._counts = {model: _Counts() for model in models}
        self._meter = Meter()

    def waiting(self, model: str) -> int:
        """Rows that take a place of the queue's capacity."""
        return self._counts[model].states[State.WAITING]

    def reject(self, model: str, rows: int, cause: str) -> None:
        """Count rows that are not admitted."""
        with self.lock:
            self._counts[model].rejected[cause] += rows

    def admit(self, entries: Iterable[Entry]) -> None:
        """Count rows as accepted and waiting."""
        with self.lock:
            for entry in entries:
                counts = self._counts[entry.request.model]
                counts.accepted += 1
                counts.states[State.WAITING] += 1
                self.live[entry.request.id] = entry

    def move(self, entry: Entry, event: Event, now_ns: int) -> bool:
        """Move an entry; False when it had ended before. The caller that gets True for a final event resolves it."""
        with self.lock:
            before = entry.state
            if not entry.move(event):
                return False
            request, after = entry.request, entry.state
            counts = self._counts[request.model]
            counts.states[before] -= 1
            counts.states[after] += 1
            if after is State.RETRYING:
                counts.retried += 1
            elif after is State.RUNNING:
                if entry.first_dispatch_ns is None:
                    entry.first_dispatch_ns = now_ns
            else:
                del self.live[request.id]
                self._meter.exited(now_ns, request, OUTCOMES[after], entry.first_dispatch_ns)
            return True

    def opened(self, task: Task, entries: Iterable[Entry], now_ns: int) -> None:
        """A sub-batch starts with these entries; those that have ended meanwhile stay ended."""
        with self.lock:
            for entry in entries:
                self.move(entry, Event.START, now_ns)
            self._meter.opened(now_ns, task)
            if task.preempted is not None:
                self._meter.preempted(now_ns, task)

    def dispatched(self, task: Task, start_ns: int, end_ns: int, failed: bool) -> None:
        """A node ran."""
        with self.lock:
            self._meter.dispatched(start_ns, end_ns, task, failed)
            self._counts[task.model].padding_rows += task.padded_rows - task.rows

    def merged(self, merge: Merge, now_ns: int) -> None:
        """Two sub-batches became one."""
        with self.lock:
            self._meter.merged(now_ns, merge)

    def snapshot(self) -> Stats:
        """Everything at one moment."""
        with self.lock:
            models = {model: _stats(counts, self._meter.of(model)) for model, counts in self._counts.items()}
            total = _Counts()
            for counts in self._counts.values():
                total.add(counts)
            return _stats(total, self._meter.total(), models)


def _stats(counts: _Counts, seen: ModelStats, models: dict[str, Stats] | None = None) -> Stats:
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
        retried=counts.retried,
        violations=seen.violations,
        batches=seen.sub_batches,
        dispatches=seen.dispatches,
        mean_rows=seen.mean_rows,
        padding_rows=counts.padding_rows,
        reasons=seen.reasons,
        preemptions=seen.preemptions,
        merges=seen.merges,
        queue_wait=seen.queue_wait,
        service=seen.service,
        latency=seen.latency,
        models=MappingProxyType(models or {}),
    )
