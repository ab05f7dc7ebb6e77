"""What becomes of one backend case, and the sum over many.

Owns: `Outcome`, `Status`, `report`.
Must not know: how a case is judged or run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    """The result of judging one case."""

    MATCHED = "matched"
    """Node by node gave the bits of the whole optimised model, on every data set."""
    REFUSED = "refused"
    """Refused at load, with a reason."""
    MISMATCHED = "mismatched"
    """Another answer, an error of another kind, or a crash: a fault of ours."""
    NOT_ACCEPTED = "not accepted by ONNX Runtime"
    """The whole model does not load or run: there is nothing to compare with."""
    NO_ONE_ANSWER = "whole model disagrees with itself"
    """Two fresh sessions give different answers (random operators), so no answer can be right."""
    SKIPPED = "not applicable"
    """The variant asked for cannot be made of this case."""


@dataclass(frozen=True)
class Outcome:
    """One case's result. nodes: of the partition; joinable: rows may join; off_suite: not the suite's answer."""

    id: str
    status: Status
    detail: str = ""
    nodes: int = 0
    joinable: bool = False
    off_suite: bool = False
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Plain values, for one line of JSON."""
        return asdict(self)


def _kind_of(detail: str) -> str:
    """A reason without the file, names and numbers in it, so that like reasons count together."""
    text = re.sub(r"/\S*/", "", detail.splitlines()[0] if detail else "")
    return re.sub(r"'[^']*'", "_", re.sub(r"\d+", "#", text))[:140]


def report(outcomes: Sequence[Outcome]) -> str:
    """The lines to print: the counts, the reasons by count, and every mismatch in full."""
    count = Counter(outcome.status for outcome in outcomes)
    served = [outcome for outcome in outcomes if outcome.status is Status.MATCHED]
    lines = [
        f"matched {count[Status.MATCHED]}, refused {count[Status.REFUSED]}, mismatched {count[Status.MISMATCHED]}",
        f"of {len(outcomes)} cases; more than one node: {sum(o.nodes > 1 for o in served)}, "
        f"nodes in all: {sum(o.nodes for o in served)}, joinable: {sum(o.joinable for o in served)}, "
        f"whole model off the suite's answer: {sum(o.off_suite for o in served)}",
    ]
    for status in (Status.NOT_ACCEPTED, Status.NO_ONE_ANSWER, Status.SKIPPED):
        if count[status]:
            lines.append(f"{count[status]} {status}")
    for status in (Status.REFUSED, Status.NO_ONE_ANSWER):
        reasons = Counter(_kind_of(outcome.detail) for outcome in outcomes if outcome.status is status)
        lines += [f"  {status} {number:4d}: {reason}" for reason, number in reasons.most_common(20)]
    lines += [f"  MISMATCH {o.id}: {o.detail}" for o in outcomes if o.status is Status.MISMATCHED]
    return "\n".join(lines)
