"""The contract between the scheduler and a policy.

Owns: `Policy`, what it is shown (`View`) and what it may answer (`Choice`).
Must not know: any particular policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.task import Comparison as Comparison
from lazybatch.core.task import Reason


class Start(NamedTuple):
    """Take rows from the lane's queue, push them as a new sub-batch and run its first node.

    rows: at least 1, at most what the lane still has room for. size_budget: cap on the sum of their sizes.
    skip: rows at the front of the queue, of the signature that is taken, to pass over; they stay where they are, and
    under "drop" they fail once they are hopeless. At least one row must be left behind them.
    riders: rows of other lanes to take along, from the front of their queues: (model, rows) of each. Only where those
    lanes say that they may (`LaneSpec.wider`), and the rows are of the same signature.
    """

    lane: Lane
    rows: int
    reason: Reason
    size_budget: int | None = None
    comparison: Comparison | None = None
    skip: int = 0
    riders: tuple[tuple[str, int], ...] = ()


class Stay(NamedTuple):
    """Go on with the active sub-batch, like None, and say why."""

    reason: Reason = Reason.CONTINUE
    comparison: Comparison | None = None


class Wait(NamedTuple):
    """Leave the processor idle, until a request arrives or this time comes (None: only an arrival)."""

    until_ns: int | None = None


Choice = Start | Stay | Wait | None
"""None means: go on with the active sub-batch (like Stay, only allowed when there is one)."""


class View(Protocol):
    """What a policy may look at. It changes nothing there."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """One per model."""

    @property
    def stack(self) -> Sequence[SubBatch]:
        """Sub-batches of all models, in the order they were preempted; the last is the active one."""

    @property
    def active(self) -> SubBatch | None:
        """The sub-batch to go on with; None when nothing is in flight (or all of it is running elsewhere)."""

    @property
    def draining(self) -> bool:
        """No further request will come."""

    def lane_of(self, model: str) -> Lane:
        """The lane of a model."""


HOOKS = ("arrived", "ran", "completed")
"""Methods that policies have which learn; see `Policy`."""


class Policy(Protocol):
    """Decides at every node boundary at which something waits, and whenever the processor is free.

    Three methods are optional, for policies that learn: ``arrived(request)`` is called with every admitted request,
    ``ran(lane, node, rows, took_ns)`` when a node has run, with the rows executed and the time since the processor was
    free for it,
    and ``completed(sub_batch, now)`` when a sub-batch's last node has run, before its rows are forgotten. An attribute
    is optional too: with ``whole_batches`` true, rows that are done with a loop keep their places until all of their
    sub-batch are; without it they leave at the step at which they are done.
    """

    needs_table: bool
    """Whether it predicts with latency tables; lanes without one are then refused."""

    def decide(self, view: View, now: int) -> Choice:
        """What to do now. Asked only while at least one request waits."""


def most_urgent_first(lanes: Sequence[Lane], now: int) -> list[Lane]:
    """Lanes with waiting requests, the one with the most urgent head first."""
    ranked = []
    for index, lane in enumerate(lanes):
        if len(lane.queue):
            urgency = lane.queue.urgency(now)
            assert urgency is not None, "the queue is not empty"
            ranked.append((urgency, index, lane))
    if len(ranked) > 1:
        ranked.sort()
    return [lane for _, _, lane in ranked]
