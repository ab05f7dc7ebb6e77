"""Node-level batching by slack: what the paper's policy and its oracle have in common.

Owns: `SlackBatching`: who is asked, in which order, and the rules that complete the paper's text.
Must not know: how slack is predicted; that is what `LazyBatching` and `Oracle` differ in.

Whenever the processor is free, or at a node boundary, the head of the queue and as many of its followers as the slack
allows become a new sub-batch. It runs first, catches up with the one it preempted, and merges with it. Rules that
complete the paper's text:

* Newcomers must be able to merge: they have the signature of the model's top sub-batch and together fit into one
  (where only some sizes may run, into one of those); otherwise they wait until that one is done. Where another model is
  active they preempt it by slack alone, as in the paper's co-location study.
* *Turns*: rows without a deadline, and lost ones, have no slack that could run out, and a loop that newcomers of its
  own model keep joining does not end by itself. So rows in flight that no deadline protects wait for other models up to
  a limit (`turns`), and while the most urgent of those that wait has been passed over too long, of another model nobody
  comes in.
* *Late*: a row that would miss its deadline even if it ran alone from now on is lost. Lost rows veto nothing (see
  `core.slack`). If the most urgent waiting row is lost, the server is overloaded: nobody preempts, of no model, until
  what is in flight is done; then that row's model starts the largest batch, unchecked. So throughput recovers instead
  of falling to one row at a time, and no stream of newcomers keeps a late row of another model waiting.
* *Dropped*: where late rows are dropped, the most urgent one is never lost. There, overload shows when more than a
  batch waits, and at the pace of what slack allows to start some of it would be lost. Then, too, the largest batch
  starts; it passes over rows in front that it would make late, as long as enough others wait to fill it.
* An idle processor always starts at least one row.
* *The largest batch* is the largest whose throughput is near the best, by the table. Where larger ones only take longer
  per row they are of use to nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Start, View, most_urgent_first
from lazybatch.core.policies.turns import has_lent, overdue
from lazybatch.core.request import Request
from lazybatch.core.task import Reason

InFlight = TypeVar("InFlight")
"""What a prediction needs to know of everything in flight, worked out once per decision."""


class SlackBatching(ABC, Generic[InFlight]):
    """Admits newcomers as far as a prediction of everybody's slack allows."""

    needs_table = True

    @abstractmethod
    def _in_flight(self, view: View, now: int) -> InFlight:
        """Look at what is in flight."""

    def _any_may_join(self, lanes: Sequence[Lane], in_flight: InFlight, now: int) -> bool:
        """Whether a row of some lane could preempt at all: a cheap look before anything is put in order."""
        return True

    @abstractmethod
    def _rows_with_slack(self, lane: Lane, room: int, in_flight: InFlight, now: int) -> int:
        """How many rows, at most ``room``, may start so that nobody in flight, and none of them, is lost by it."""

    def decide(self, view: View, now: int) -> Choice:
        """Admit newcomers as far as the slack of everyone allows; else go on."""
        if view.active is not None and not any(map(has_room, view.lanes)):
            return None
        in_flight = self._in_flight(view, now)
        if view.active is not None and not self._any_may_join(view.lanes, in_flight, now):
            return None
        lanes = most_urgent_first(view.lanes, now)
        first: Request | None = None
        for lane in lanes:
            head = lane.queue.head(now)
            assert head is not None, "most_urgent_first returns lanes in which something waits"
            first = first or head
            if view.active is None:
                return self._start_idle(lane, head, in_flight, now)
            if is_lost(lane, head, now):
                return None
            rows = self._newcomers(lane, head, in_flight, now)
            if rows and not _lent_enough(lane, view, now):
                if head is not first and overdue(first, lanes, view, now):
                    return None
                return Start(lane, rows, Reason.PREEMPT_SLACK)
        return None

    def _start_idle(self, lane: Lane, head: Request, in_flight: InFlight, now: int) -> Start:
        if not lane.spec.joinable or type(head.signature) is Alone:
            return Start(lane, 1, Reason.START_ALONE)
        if is_lost(lane, head, now):
            return Start(lane, lane.rows_best, Reason.START_LATE)
        rows = max(1, self._rows_with_slack(lane, lane.rows_best, in_flight, now))
        if rows == lane.rows_best:
            return Start(lane, rows, Reason.START_FULL)
        if lane.spec.late == "drop" and len(lane.queue) > lane.rows_best:
            waiting = lane.queue.peek(now, len(lane.queue))
            if len(waiting) > lane.rows_best and _too_slow(lane, waiting, rows, now):
                return Start(lane, lane.rows_best, Reason.START_LATE, skip=lane.made_late(lane.rows_best, now))
        return Start(lane, rows, Reason.START_IDLE)

    def _newcomers(self, lane: Lane, head: Request, in_flight: InFlight, now: int) -> int:
        """Rows of the lane that may preempt now; 0 for none."""
        top = lane.table.top
        room = lane.rows_best - lane.table.rows
        if room <= 0 or (top is not None and top.signature != head.signature):
            return 0
        return lane.joining_rows(self._rows_with_slack(lane, room, in_flight, now))


def _lent_enough(newcomers: Lane, view: View, now: int) -> bool:
    """Whether rows of another model have waited in flight long enough for this one not to come in."""
    if len(view.lanes) == 1:
        return False
    others = [(view.lane_of(entry.model), entry) for entry in view.stack if entry.model != newcomers.model]
    return any(has_lent(lane, entry, now) for lane, entry in others)


def has_room(lane: Lane) -> bool:
    """Whether a row waits, and another one would fit beside those in flight."""
    return lane.table.rows < lane.rows_best and len(lane.queue) > 0


def is_lost(lane: Lane, request: Request, now: int) -> bool:
    """Whether a waiting row would miss its deadline even if it ran alone from now on."""
    return request.deadline_ns - now < lane.single_ns(request)


def single_left_ns(lane: Lane, cursor: int) -> int:
    """Time that one row alone still needs from a node on."""
    assert lane.single_left_ns is not None, "the scheduler refuses lanes without a table for this policy"
    return lane.single_left_ns[cursor]


def _too_slow(lane: Lane, waiting: Sequence[Request], rows: int, now: int) -> bool:
    """Whether the next or the last of those that wait would be lost if batches of ``rows`` ran from now on."""
    pace_ns = lane.run_ns(rows)
    return any(is_lost(lane, waiting[place], now + place // rows * pace_ns) for place in (rows, len(waiting) - 1))
