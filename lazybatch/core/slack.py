"""Slack: how much time a request has left before its SLA target is missed.

Owns: what the paper's Eq. 1 and Eq. 2 protect, of everything that is in flight.
Must not know: queues, stacks, policies; it is arithmetic on times.

    Eq. 1   slack = SLA_target - (T_wait + SingleInputExecTime)
    Eq. 2   slack = SLA_target - (T_wait + sum over the batch of SingleInputExecTime_i)

With a deadline (arrival + SLA_target) and the present moment, SLA_target - T_wait is ``deadline - now``. Eq. 2 is
conservative: batched rows are charged as if they ran one after the other. Two things are stated here that the paper
leaves open. *Progress is credited*: a row in flight is charged only for the nodes still before it. *A row that is
already lost* — it would miss its deadline even if it ran alone from now on — no longer vetoes anything: protecting it
is impossible, and obeying it would hold the server at batch size one for ever. It is served with the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def tightest_deadline_ns(deadlines_ns: Sequence[int], now: int, single_left_ns: int) -> int | None:
    """The earliest of the ascending deadlines that can still be met by running alone; None when all are lost."""
    first = bisect_left(deadlines_ns, now + single_left_ns)
    return deadlines_ns[first] if first < len(deadlines_ns) else None
