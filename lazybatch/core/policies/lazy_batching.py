"""LazyBatching, the paper's policy: preempt at node boundaries for newcomers while no SLA is endangered.

Owns: `LazyBatching`: admission by Eq. 2 over everything in flight, newest sub-batch on top.
Must not know: exact batched latencies; Eq. 2 charges single-input times only (an oracle would use the whole table).

Whenever the processor is free, or at a node boundary, the head of the queue and as many of its followers as the slack
allows become a new sub-batch. It runs first, catches up with the one it preempted, and merges with it. Rules that
complete the paper's text:

* Newcomers must be able to merge: they have the signature of the model's top sub-batch and together fit into one
  (where only some sizes may run, into one of those); otherwise they wait until that one is done. Where another model is
  active they preempt it by slack alone, as in the paper's co-location study.
* *Late*: a row that would miss its deadline even if it ran alone from now on is lost. Lost rows veto nothing (see
  `core.slack`). If the most urgent waiting row is lost, the server is overloaded: nobody preempts, of no model, until
  what is in flight is done; then that row's model starts the largest batch, unchecked. So throughput recovers instead
  of falling to one row at a time, and no stream of newcomers keeps a late row of another model waiting.
* An idle processor always starts at least one row.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Start, View, most_urgent_first
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.slack import tightest_deadline_ns
from lazybatch.core.task import Reason

InFlight = tuple[int, int]
"""Sum of the single-input times that rows in flight still need, and the earliest of their deadlines not lost."""


class LazyBatching:
    """SLA-aware node-level batching as published (HPCA 2021), Eq. 2."""

    needs_table = True

    def __repr__(self) -> str:
        return "LazyBatching()"

    def decide(self, view: View, now: int) -> Choice:
        """Admit newcomers as far as the slack of everyone allows; else go on."""
        in_flight = _in_flight(view, now)
        if view.active is not None and not _any_may_join(view.lanes, in_flight, now):
            return None
        for lane in most_urgent_first(view.lanes, now):
            head = lane.queue.head(now)
            assert head is not None, "most_urgent_first returns lanes in which something waits"
            if view.active is None:
                return self._start_idle(lane, head, in_flight, now)
            if _lost(lane, head, now):
                return None
            rows = self._newcomers(lane, head, in_flight, now)
            if rows:
                return Start(lane, rows, Reason.PREEMPT_SLACK)
        return None

    def _start_idle(self, lane: Lane, head: Request, in_flight: InFlight, now: int) -> Start:
        if not lane.spec.joinable or type(head.signature) is Alone:
            return Start(lane, 1, Reason.START_ALONE)
        if _lost(lane, head, now):
            return Start(lane, lane.rows_max, Reason.START_LATE)
        rows = max(1, self._rows_with_slack(lane, lane.rows_max, in_flight, now))
        return Start(lane, rows, Reason.START_FULL if rows == lane.rows_max else Reason.START_IDLE)

    def _newcomers(self, lane: Lane, head: Request, in_flight: InFlight, now: int) -> int:
        """Rows of the lane that may preempt now; 0 for none."""
        top = lane.table.top
        room = lane.rows_max - lane.table.rows
        if room <= 0 or (top is not None and top.signature != head.signature):
            return 0
        return lane.joining_rows(self._rows_with_slack(lane, room, in_flight, now))

    @staticmethod
    def _rows_with_slack(lane: Lane, room: int, in_flight: InFlight, now: int) -> int:
        """How many rows may start by Eq. 2 so that nobody in flight, and none of them, is lost by it."""
        busy_ns, deadline_ns = in_flight
        single_ns = _single_left_ns(lane, 0)
        done_ns = now + busy_ns
        rows = 0
        for request in lane.queue.peek(now, room):
            if now + single_ns <= request.deadline_ns < deadline_ns:  # a lost row vetoes nothing
                deadline_ns = request.deadline_ns
            done_ns += single_ns
            if deadline_ns < done_ns:
                break
            rows += 1
        return rows


def _in_flight(view: View, now: int) -> InFlight:
    busy_ns, deadline_ns = 0, UNBOUNDED_NS
    for entry in view.stack:
        single_ns = _single_left_ns(view.lane_of(entry.model), entry.cursor)
        busy_ns += single_ns * len(entry.requests)
        if entry.deadlines_ns[0] < deadline_ns:
            tightest_ns = tightest_deadline_ns(entry.deadlines_ns, now, single_ns)
            if tightest_ns is not None and tightest_ns < deadline_ns:
                deadline_ns = tightest_ns
    return busy_ns, deadline_ns


def _any_may_join(lanes: Sequence[Lane], in_flight: InFlight, now: int) -> bool:
    """Whether a row of some lane could preempt at all: a cheap look before anything is put in order."""
    busy_ns, deadline_ns = in_flight
    slack_ns = deadline_ns - now - busy_ns
    for lane in lanes:  # the slack comes first: under load it is what most often says no
        if slack_ns >= _single_left_ns(lane, 0) and lane.table.rows < lane.rows_max and len(lane.queue):
            return True
    return False


def _lost(lane: Lane, request: Request, now: int) -> bool:
    return request.deadline_ns - now < _single_left_ns(lane, 0)


def _single_left_ns(lane: Lane, cursor: int) -> int:
    assert lane.single_left_ns is not None, "the scheduler refuses lanes without a table for this policy"
    return lane.single_left_ns[cursor]
