"""LazyBatching, the paper's policy: preempt at node boundaries for newcomers while no SLA is endangered.

Owns: `LazyBatching`: slack by Eq. 2 over everything in flight, newest sub-batch on top.
Must not know: exact batched latencies; Eq. 2 charges single-input times only (`Oracle` uses the whole table). Who is
asked when, and what completes the paper's text, is in `slack_batching`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.loop_latency import LoopLatency
from lazybatch.core.policies.base import View
from lazybatch.core.policies.slack_batching import SlackBatching, has_room, single_left_ns
from lazybatch.core.request import UNBOUNDED_NS
from lazybatch.core.slack import tightest_deadline_ns

Charged = tuple[int, int]
"""Sum of the single-input times that rows in flight still need, and the earliest of their deadlines not lost."""


class LazyBatching(SlackBatching[Charged]):
    """SLA-aware node-level batching as published (HPCA 2021), Eq. 2."""

    def __repr__(self) -> str:
        return "LazyBatching()"

    def _in_flight(self, view: View, now: int) -> Charged:
        busy_ns, deadline_ns = 0, UNBOUNDED_NS
        for entry in view.stack:
            latency = view.lane_of(entry.model).loop_latency
            if latency is not None:
                left_ns, tightest_ns = _in_loops(latency, entry, now)
                busy_ns += left_ns
                deadline_ns = min(deadline_ns, tightest_ns)
                continue
            single_ns = single_left_ns(view.lane_of(entry.model), entry.cursor)
            busy_ns += single_ns * len(entry.requests)
            if entry.deadlines_ns[0] < deadline_ns:
                tightest = tightest_deadline_ns(entry.deadlines_ns, now, single_ns)
                if tightest is not None and tightest < deadline_ns:
                    deadline_ns = tightest
        return busy_ns, deadline_ns

    def _any_may_join(self, lanes: Sequence[Lane], in_flight: Charged, now: int) -> bool:
        busy_ns, deadline_ns = in_flight
        slack_ns = deadline_ns - now - busy_ns
        for lane in lanes:  # the slack comes first: under load it is what most often says no
            # In loops rows differ; whoever waits is looked at.
            least_ns = 0 if lane.loops else single_left_ns(lane, 0)
            if slack_ns >= least_ns and has_room(lane):
                return True
        return False

    def _rows_with_slack(self, lane: Lane, room: int, in_flight: Charged, now: int) -> int:
        busy_ns, deadline_ns = in_flight
        single_ns = single_left_ns(lane, 0)
        done_ns = now + busy_ns
        rows = 0
        for request in lane.queue.peek(now, room):
            if lane.loops:
                single_ns = lane.single_ns(request)
            if now + single_ns <= request.deadline_ns < deadline_ns:  # a lost row vetoes nothing
                deadline_ns = request.deadline_ns
            done_ns += single_ns
            if deadline_ns < done_ns:
                break
            rows += 1
        return rows


def _in_loops(latency: LoopLatency, entry: SubBatch, now: int) -> Charged:
    """The same of one sub-batch whose rows differ in what is left of them."""
    deadline_ns = UNBOUNDED_NS
    behind = {} if entry.progress is None else entry.progress.iterations()
    lefts_ns = latency.lefts_ns(entry.requests, entry.cursor, behind)
    if entry.deadlines_ns[0] < UNBOUNDED_NS:
        for request, left_ns in zip(entry.requests, lefts_ns, strict=True):
            if now + left_ns <= request.deadline_ns < deadline_ns:
                deadline_ns = request.deadline_ns
    return sum(lefts_ns), deadline_ns
