"""What the scheduler tells its driver.

Owns: the frozen records that leave the core: `Task`, `Comparison`, `Merge`, `Split`, `Completion`, `Failure`,
`Expired`, `Cancellation`, and the `Reason` every decision carries.
Must not know: how any of it is carried out.

Tuples rather than frozen dataclasses where a record is made on every dispatch: they are as immutable and several
times cheaper to build.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Why a dispatch was what it was. The texts are what `stats()` and traces show."""

    CONTINUE = "continue"
    """The active sub-batch goes on to its next node."""
    START_SERIAL = "start: one at a time"
    START_ALONE = "start: this row cannot join others"
    START_FULL = "start: batch is full"
    START_WINDOW = "start: window of the oldest row ended"
    START_IDLE = "start: processor is free"
    START_DRAIN = "start: draining, no further row can come"
    START_LATE = "start: already late, the largest batch"
    JOIN_STEP = "join: newcomers enter the running loop"
    JOIN_LOOP = "join: enough wait to interrupt the running loop"
    STAY_LOOP = "continue: too few wait to interrupt the running loop"
    STAY_CHEAPER = "continue: newcomers wait, predicted to cost less"
    PREEMPT_CHEAPER = "preempt: newcomers catch up, predicted to cost less"
    PREEMPT_URGENT = "preempt: newcomers of a higher priority"
    PREEMPT_SLACK = "preempt: newcomers catch up, slack allows it"


class Merge(NamedTuple):
    """Sub-batch ``source`` ceases to exist; its rows now belong to ``target``. Both stand at the same node."""

    model: str
    target: int
    source: int


class Split(NamedTuple):
    """Rows leave a loop before the others: they are now sub-batch ``target``, new, at the node behind the loop.

    ``source`` goes on with its other rows, at the loop's first node. requests: those that leave, in row order.
    """

    model: str
    source: int
    target: int
    requests: tuple[int, ...]


class Comparison(NamedTuple):
    """The two sides of a decision: predicted cost in row-nanoseconds and late rows, of going on and of starting."""

    stay_cost: float
    start_cost: float
    stay_late: int
    start_late: int


class Task(NamedTuple):
    """Run one node of one sub-batch.

    opened: ids of the requests this sub-batch starts with when this is its first node, else empty.
    rows: live rows in the sub-batch; padded_rows: rows to execute (>= rows; more where only some sizes are allowed).
    preempted: id of the sub-batch that was active at the last node boundary and has been parked for this one, or None.
    comparison: what the policy compared to decide so, where it did.
    joined: where the newcomers stand where ``sub_batch`` already does, before a loop that is the graph's first stage:
    the sub-batch that ``opened`` forms for a moment, to be merged into ``sub_batch`` before the node runs. Else None.
    """

    model: str
    sub_batch: int
    node: int
    rows: int
    padded_rows: int
    opened: tuple[int, ...]
    preempted: int | None
    reason: Reason
    comparison: Comparison | None = None
    joined: int | None = None


class Completion(NamedTuple):
    """What a finished task led to, in the order a driver must apply it: evicted, finished, split, merges.

    evicted: requests that were cancelled while the task ran; they leave the sub-batch now and have no result.
    finished: requests whose last node this was. The sub-batch is over when they are all it has left; where the last
    stage is a loop it may go on with the others.
    split: requests that leave a loop for what follows it, while others stay.
    merges: sub-batches to join now, in order.
    truncated: those among the requests which leave a loop now, or wait in it for others that their policy does not
    leave behind, that were not done: the loop's maximum ended them.
    """

    evicted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    split: Split | None = None
    merges: tuple[Merge, ...] = ()
    truncated: tuple[int, ...] = ()

    @property
    def leaving(self) -> int:
        """How many leave with what they have: finished, or for what follows their loop."""
        return len(self.finished) + (0 if self.split is None else len(self.split.requests))


NOTHING = Completion()
"""Nobody leaves and nothing merges: the sub-batch goes on. What follows from most tasks, so it is made once."""


class Failure(NamedTuple):
    """What a failed task led to: its sub-batch is gone, or, after `Scheduler.expel`, those it was to let in.

    failed: requests that failed alone, for good. retried: requests back in the queue, to be run again one by one.
    evicted: requests that were cancelled while the task ran.
    """

    failed: tuple[int, ...]
    retried: tuple[int, ...]
    evicted: tuple[int, ...]
    merges: tuple[Merge, ...] = ()


class Expired(NamedTuple):
    """A waiting request that is gone from the queue.

    hopeless: it can no longer make its deadline, and late requests are dropped; else its level's queue timeout ended.
    """

    request: int
    hopeless: bool


class Where(StrEnum):
    """Where a request was when it was cancelled."""

    QUEUED = "queued"
    PARKED = "parked"
    RUNNING = "running"
    UNKNOWN = "unknown"


class Cancellation(NamedTuple):
    """The effect of a cancel.

    QUEUED: gone from the queue. PARKED: gone from ``sub_batch``, the driver must evict its row there (or discard the
    sub-batch when ``emptied``), then apply ``merges``. RUNNING: reported as evicted when the task completes.
    UNKNOWN: already finished, nothing to do.
    """

    where: Where
    sub_batch: int | None = None
    emptied: bool = False
    merges: tuple[Merge, ...] = ()
