"""A model served without a thread: real executor, real engine, and a clock that is stepped by the nodes that run.

Owns: `replay`, which lets rows arrive at random under a policy, withdraws some on the way, and tells what happened.
Must not know: any particular model.

Nothing here depends on how fast the machine is: a seed and a policy decide who is preempted, who joins whom and when.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from lazybatch.core.lane import LaneSpec
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.task import Completion, Merge, Task
from lazybatch.engine import Engine, ServedModel, SteppedClock
from lazybatch.metrics import Observer
from lazybatch.policies import make_policy
from tests.serving import flat_table

NODE_NS = 1_000_000


@dataclass
class Course(Observer):
    """What happened.

    results: by row, None for those withdrawn. steps: by row, what it streamed. joins: merges, and newcomers that
    entered a running loop. left: rows that left a loop in which others of their sub-batch went on.
    rows_most: in one run.
    """

    results: list[Any] = field(default_factory=list)
    steps: list[list[Mapping[str, Any]]] = field(default_factory=list)
    preemptions: int = 0
    joins: int = 0
    left: int = 0
    rows_most: int = 0

    def opened(self, now_ns: int, task: Task) -> None:
        """Newcomers that enter a running loop at once count as joined."""
        self.joins += task.joined is not None

    def preempted(self, now_ns: int, task: Task) -> None:
        """Count."""
        self.preemptions += 1

    def merged(self, now_ns: int, merge: Merge) -> None:
        """Count."""
        self.joins += 1

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Widest sub-batch."""
        self.rows_most = max(self.rows_most, task.rows)

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """Count."""
        leavers = len(completion.split.requests if completion.split else completion.finished)
        self.left += leavers if leavers < task.rows - len(completion.evicted) else 0


class _Timed:
    """An executor whose nodes take time on a clock that is stepped."""

    def __init__(self, executor: Any, clock: SteppedClock) -> None:
        self._executor, self._clock = executor, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(self, sub_batch: int, node: int) -> Any:
        """Run, and let time pass."""
        self._clock.advance(NODE_NS)
        return self._executor.run(sub_batch, node)


def replay(
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    policy: str,
    seed: int,
    *,
    max_batch_size: int = 8,
    gap_nodes: float = 4.0,
    sla_nodes: float = 200.0,
    withdrawn: float = 0.0,
    lengths: tuple[LengthGuess | None, ...] = (),
) -> Course:
    """Serve all rows; they arrive with random gaps, on average of so many node times, and their steps are noted.

    sla_nodes: their target, in node times; policies that watch it let nobody in where somebody would be late.
    withdrawn: share of rows that are cancelled at a random moment after they came, if they are still there.
    """
    return _Replay(model, rows, policy, seed, max_batch_size, gap_nodes, sla_nodes, withdrawn, lengths).to_end()


class _Replay:
    """One run under way."""

    def __init__(
        self,
        model: Any,
        rows: Sequence[Mapping[str, Any]],
        policy: str,
        seed: int,
        max_batch_size: int,
        gap_nodes: float,
        sla_nodes: float,
        withdrawn: float,
        lengths: tuple[LengthGuess | None, ...],
    ) -> None:
        self.model, self.rows, self.chance, self.withdrawn = model, rows, random.Random(seed), withdrawn
        self.clock, self.course = SteppedClock(), Course(steps=[[] for _ in rows])
        spec = LaneSpec(
            model.graph,
            flat_table(model, NODE_NS),
            max_batch_size,
            queue_capacity=len(rows),
            sla_ns=round(sla_nodes * NODE_NS),
            lengths=lengths,
        )
        served = ServedModel(spec, _Timed(model.executor(max_batch_size=max_batch_size), self.clock))
        chosen = make_policy(policy, [spec])
        self.engine = Engine([served], chosen, clock=self.clock, threaded=False, observers=[self.course])
        gaps_ns = (round(self.chance.expovariate(1 / (gap_nodes * NODE_NS))) for _ in rows)
        self.arrivals_ns = list(accumulate(gaps_ns))
        self.futures: list[Any] = []
        self.cancels: list[tuple[int, int]] = []
        self.closed = False

    def to_end(self) -> Course:
        while True:
            self._arrive()
            if self.engine.step():
                self.engine.scheduler.validate()
                continue
            times_ns = self.arrivals_ns[len(self.futures) :][:1]
            wakeup_ns = self.engine.next_wakeup_ns()
            times_ns += [] if wakeup_ns is None else [wakeup_ns]
            if not times_ns:
                break
            self.clock.advance_to(min(times_ns))
        self.engine.shutdown()
        assert self.engine.stats().policy_failures == 0
        self.course.results = [None if one.cancelled() else one.result(timeout=0) for one in self.futures]
        return self.course

    def _arrive(self) -> None:
        """Hand in and withdraw what is due by now."""
        now = self.clock.now_ns()
        while len(self.futures) < len(self.rows) and self.arrivals_ns[len(self.futures)] <= now:
            number = len(self.futures)
            row = self.model.admit(self.rows[number])
            sink = self.course.steps[number].append
            self.futures += self.engine.submit(self.model.name, [row], arrival_ns=self.arrivals_ns[number], sink=sink)
            if self.chance.random() < self.withdrawn:
                self.cancels.append((now + round(self.chance.uniform(0, 60) * NODE_NS), number))
        for due in [one for one in self.cancels if one[0] <= now]:
            self.cancels.remove(due)
            self.futures[due[1]].cancel()
        if len(self.futures) == len(self.rows) and not self.closed:
            self.engine.close(drain=True)
            self.closed = True
