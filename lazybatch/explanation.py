"""Decisions in words: what was started or held back, why, and which two costs were compared.

Owns: `Explanation`, one decision as people read it, and `latest`, those of a decision log that tell something.
Must not know: how decisions are made, who asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lazybatch.core.graph import NodeGraph
from lazybatch.core.scheduler import Decision
from lazybatch.core.task import Comparison, Reason, Task
from lazybatch.words import counted

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision; ``str`` of it is a sentence.

    at_ns: when: nanoseconds since the batcher was made, or since virtual time 0 in the simulator. node: name of the
    node that ran next. rows: of the sub-batch that ran; opened: ids of the rows it began with, empty where it went on.
    preempted: the sub-batch parked for it, or None. comparison: predicted cost in row-nanoseconds and predicted late
    rows, of going on and of starting, where the policy compared.
    joined: the rows opened joined the running loop at once, at its first node.
    """

    at_ns: int
    model: str
    node: str
    sub_batch: int
    rows: int
    opened: tuple[int, ...]
    preempted: int | None
    reason: Reason
    comparison: Comparison | None
    joined: bool = False

    def __str__(self) -> str:
        rows = counted(self.rows, "row")
        if not self.opened:
            what = f"sub-batch {self.sub_batch} ({rows}) goes on with {self.node!r}"
        elif self.joined:
            what = f"{len(self.opened)} of {rows} joined sub-batch {self.sub_batch}"
        elif self.preempted is None:
            what = f"{rows} started as sub-batch {self.sub_batch}"
        else:
            what = f"{rows} started as sub-batch {self.sub_batch}, sub-batch {self.preempted} is parked"
        return f"{self.at_ns / _NS_PER_MS:.3f} ms, model {self.model!r}: {what}; {self.reason.value}{self._compared()}"

    def _compared(self) -> str:
        seen = self.comparison
        if seen is None:
            return ""
        stay, start = f"{seen.stay_cost / _NS_PER_MS:.3f}", f"{seen.start_cost / _NS_PER_MS:.3f}"
        late = f", late rows {seen.stay_late} against {seen.start_late}" if seen.stay_late or seen.start_late else ""
        return f" (row-milliseconds: {stay} going on, {start} starting{late})"

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        plain["opened"] = list(self.opened)
        plain["reason"] = self.reason.value
        plain["comparison"] = None if self.comparison is None else self.comparison._asdict()
        return plain


def telling(task: Task) -> bool:
    """Whether something was decided here: rows started, or were held back after a comparison."""
    return bool(task.opened) or task.comparison is not None


def latest(
    decisions: Sequence[Decision],
    graphs: Mapping[str, NodeGraph],
    most: int,
    *,
    start_ns: int = 0,
) -> list[Explanation]:
    """The last ``most`` decisions of a log, oldest first, without those that tell nothing.

    graphs: of the models whose decisions are wanted; those of others are left out. start_ns: reading of the log's clock
    from which they are to count.
    """
    chosen = (decision for decision in reversed(decisions) if decision.task.model in graphs and telling(decision.task))
    return [_explain(decision, graphs, start_ns) for decision in islice(chosen, most)][::-1]


def _explain(decision: Decision, graphs: Mapping[str, NodeGraph], start_ns: int) -> Explanation:
    task = decision.task
    node = graphs[task.model].nodes[task.node].name
    return Explanation(
        decision.now_ns - start_ns,
        task.model,
        node,
        task.sub_batch,
        task.rows,
        task.opened,
        task.preempted,
        task.reason,
        task.comparison,
        task.joined is not None,
    )
