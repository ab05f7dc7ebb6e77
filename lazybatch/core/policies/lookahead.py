"""Lookahead, the default policy: one step ahead over solved control.

Owns: `Lookahead`. Must not know: how controls are solved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.core.batch_table import SubBatch
from lazybatch.core.control import Control, Solution
from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Start, View, Wait, most_urgent_first
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Reason


class Lookahead:
    """At each node boundary: go on, or let k newcomers catch up and merge, whichever is predicted to cost less."""

    needs_table = True

    def __init__(self, controls: Mapping[str, Control]) -> None:
        self._controls = controls
        self._rates: dict[str, ArrivalRate] = {model: ArrivalRate() for model in controls}
        self._cumulative: dict[str, tuple[tuple[int, ...], ...]] = {}

    def __repr__(self) -> str:
        return "Lookahead()"

    def arrived(self, request: Request) -> None:
        self._rates[request.model].arrived(request.arrival_ns)

    def _solution(self, lane: Lane, now: int) -> Solution:
        rate = self._rates[lane.model].per_ns(now)
        return self._controls[lane.model].at(rate or 0.0)

    def _sums(self, lane: Lane) -> tuple[tuple[int, ...], ...]:
        """Per rows, the time from the first node to each cursor."""
        sums = self._cumulative.get(lane.model)
        if sums is None:
            assert lane.times_ns is not None
            built = []
            for rows in range(lane.spec.max_batch_size + 1):
                total, row = 0, [0]
                for times in lane.times_ns:
                    total += times[rows]
                    row.append(total)
                built.append(tuple(row))
            sums = self._cumulative[lane.model] = tuple(built)
        return sums

    def decide(self, view: View, now: int) -> Choice:
        if view.active is None:
            return self._idle(view, now)
        for lane in most_urgent_first(view.lanes, now):
            head = lane.queue.head(now)
            top = lane.table.top
            waiting = len(lane.queue)
            room = lane.rows_max - lane.table.rows
            if head is None or room <= 0 or (top is not None and top.signature != head.signature):
                continue
            if top is None:
                continue
            rows = min(room, waiting)
            if self._worth(lane, view, rows, waiting, now):
                return Start(lane, rows, Reason.PREEMPT_SLACK)
        return None

    def _worth(self, lane: Lane, view: View, rows: int, waiting: int, now: int) -> bool:
        sums = self._sums(lane)
        solution = self._solution(lane, now)
        stack = [(entry.cursor, len(entry.requests)) for entry in lane.table]
        stay_ns, stay = _drain(sums, lane, stack)
        join_ns, join = _drain(sums, lane, [*stack, (0, rows)])
        return _cost(solution, join, join_ns, waiting - rows) < _cost(solution, stay, stay_ns, waiting)

    def _idle(self, view: View, now: int) -> Choice:
        for lane in most_urgent_first(view.lanes, now):
            head = lane.queue.head(now)
            assert head is not None
            if not lane.spec.joinable or type(head.signature) is Alone:
                return Start(lane, 1, Reason.START_ALONE)
            waiting = len(lane.queue)
            rate = self._rates[lane.model].per_ns(now)
            rows = self._solution(lane, now).start(waiting)
            if rows == 0 and rate is not None:
                until_ns = self._rates[lane.model].last_arrival_ns + int(3 / rate)
                if now < until_ns:
                    return Wait(until_ns)
            rows = min(rows or waiting, lane.rows_max)
            return Start(lane, rows, Reason.START_IDLE)
        return None


def _cost(solution: Solution, drained: float, time_ns: int, waiting: int) -> float:
    return (
        drained + waiting * time_ns + solution.rate_per_ns * time_ns * time_ns / 2
        - solution.gain_rows * time_ns + solution.after(waiting, time_ns)
    )


def _drain(sums: tuple[tuple[int, ...], ...], lane: Lane, stack: list[tuple[int, int]]) -> tuple[int, float]:
    """Time and row-time to finish a stack, top first, merging where sub-batches meet."""
    stack = list(stack)
    total_ns, cost, inside = 0, 0, sum(rows for _, rows in stack)
    while stack:
        cursor, rows = stack.pop()
        if stack and stack[-1][0] >= cursor and rows + stack[-1][1] <= lane.rows_max:
            below, mates = stack.pop()
            step_ns = sums[rows][below] - sums[rows][cursor]
            stack.append((below, rows + mates))
            done = 0
        else:
            step_ns = sums[rows][-1] - sums[rows][cursor]
            done = rows
        cost += inside * step_ns
        total_ns += step_ns
        inside -= done
    return total_ns, cost
