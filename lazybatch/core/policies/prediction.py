"""Predicting what a stack of sub-batches will still take, from exact tables.

Owns: `Running` (one sub-batch as the prediction sees it), `Drain` and `drain`: the time until the stack has run to its
end without further newcomers, and what its rows spend until then.
Must not know: queues, arrival rates, decisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from lazybatch.core.lane import Lane
from lazybatch.core.request import Request

_new = tuple.__new__  # as in the scheduler: a NamedTuple's own constructor is one more call


class Running(NamedTuple):
    """A sub-batch: its lane, next node, rows (those that pad it among them), signature.

    signature: one that is padded, and so merges with nobody, has a value of its own. deadlines_ns: of its rows, in
    ascending runs (one per sub-batch that was merged). requests: those whose latency counts, oldest first.
    more_ns: what is left of it beyond what the table has from that node on, which goes round loops as often as the mean
    row; less than nothing for rows that have most of that behind them.
    """

    lane: Lane
    cursor: int
    rows: int
    signature: Hashable
    deadlines_ns: tuple[Sequence[int], ...]
    requests: Sequence[Request]
    more_ns: int = 0


class Drain(NamedTuple):
    """The predicted end of a stack.

    time_ns: until everything is done. row_time_ns: sum over rows of the time until each is done; both by the table.
    late: rows that end after their deadline; late_ns: what they cost, at the given price for one of each model.
    tail_ns: sum over requests of their latency beyond the given bound, by the clock.
    """

    time_ns: int
    row_time_ns: int
    late: int
    late_ns: float
    tail_ns: float


def drain(
    stack: list[Running],
    now: int,
    late_price_ns: Mapping[str, float],
    tail_from_ns: Mapping[str, float],
    pace: float = 1.0,
) -> Drain:
    """Run the stack in thought, top first; a sub-batch that reaches an older one of its model merges with it.

    ``stack`` is consumed. Merging follows the BatchTable: equal nodes and signatures, and rows within the maximum and
    of an allowed number.
    late_price_ns: by model, the price of one row that ends late; models not in it have no deadlines.
    tail_from_ns: by model, the latency beyond which a request is in the tail. pace: what the clock shows over tables.
    """
    time_ns = row_time_ns = late = 0
    late_ns = tail_ns = 0.0
    inside = sum([entry[2] for entry in stack])
    while stack:
        lane, cursor, rows, signature, deadlines_ns, requests, more_ns = stack.pop()
        sums_ns = lane.sums_ns[rows]
        if stack:
            below = _met(stack, lane, cursor, rows, signature)
            if below is not None:
                _, met_cursor, met_rows, _, met_deadlines_ns, met_requests, met_more_ns = stack.pop(below)
                step_ns = sums_ns[met_cursor] - sums_ns[cursor]
                time_ns += step_ns
                row_time_ns += inside * step_ns
                deadlines_ns += met_deadlines_ns
                requests = [*met_requests, *requests] if requests else met_requests
                merged = (lane, met_cursor, rows + met_rows, signature, deadlines_ns, requests, met_more_ns)
                stack.append(_new(Running, merged))
                continue
        step_ns = sums_ns[-1] - sums_ns[cursor] + more_ns
        time_ns += step_ns
        row_time_ns += inside * step_ns
        inside -= rows
        end_ns = now + pace * time_ns
        model = lane.model
        price_ns = late_price_ns.get(model)
        if price_ns is not None:
            for ascending in deadlines_ns:
                if missed := bisect_left(ascending, end_ns):
                    late += missed
                    late_ns += missed * price_ns
        long_ago_ns = end_ns - tail_from_ns[model]
        for request in requests:
            arrival_ns = request.arrival_ns
            if arrival_ns >= long_ago_ns:
                break
            tail_ns += long_ago_ns - arrival_ns
    return _new(Drain, (time_ns, row_time_ns, late, late_ns, tail_ns))


def _met(stack: list[Running], lane: Lane, cursor: int, rows: int, signature: Hashable) -> int | None:
    """Position of the sub-batch the top will meet and may merge with; None where it runs to its end alone."""
    position = len(stack)
    while position:
        position -= 1
        of, met_cursor, met_rows, met_signature, _, _, _ = stack[position]
        if of is lane:
            together, sizes = met_rows + rows, lane.spec.allowed_sizes
            meets = met_cursor >= cursor and together <= lane.rows_max and met_signature == signature
            return position if meets and (not sizes or together in sizes) else None
    return None
