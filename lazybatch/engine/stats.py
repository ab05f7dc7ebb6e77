"""Statistics as callers see them.

Owns: `Stats`, one consistent, frozen snapshot.
Must not know: how anything is counted (`engine.ledger`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lazybatch.metrics import Summary


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start, all taken at one moment. Rows unless said otherwise; a call of four rows counts four.

    queued: rows that wait, including those that wait to be retried. in_flight: rows in sub-batches, running or parked.
    accepted: admitted rows. At any moment accepted = queued + in_flight + completed + failed + cancelled + expired
    + dropped.
    rejected: rows not admitted, by cause: "overloaded", "deadline" (already past), "shutting_down", "invalid".
    cancelled: withdrawn by the caller or ended by a shutdown. expired: a hard limit or a queue timeout passed.
    dropped: could no longer make their deadline while they waited (with ``late="drop"``).
    retried: times a row went back to run alone after its batch failed.

    batches: sub-batches started. dispatches: node runs (for a callable: calls); reasons: dispatches by reason.
    mean_rows: rows per dispatch. padding_rows: rows executed for nobody, summed over dispatches.
    tokens: lengths of the rows that started, summed, and padded_tokens what they were padded to, of models whose rows
    are padded; 0 elsewhere. What is over 1 in padded_tokens / tokens is computed for nobody.
    preemptions, merges: of sub-batches. policy_failures: decisions the policy could not make (it raised, or chose what
    cannot be done) and graph batching made in its place; in the total only.
    steps: runs of a whole loop body; iterations: rows in them, summed. left_early: rows that left a loop while others
    of their sub-batch stayed. truncated: rows that the maximum of a loop ended before they were done.

    queue_wait: submit to first node, of rows that started. service: first node to result; latency: submit to result,
    both of completed rows, in nanoseconds. violations: completed rows whose result came after their soft target.
    models: the same per model, in the total only.
    """

    queued: int
    in_flight: int
    accepted: int
    rejected: Mapping[str, int]
    completed: int
    failed: int
    cancelled: int
    expired: int
    dropped: int
    retried: int
    violations: int
    batches: int
    dispatches: int
    mean_rows: float | None
    padding_rows: int
    tokens: int
    padded_tokens: int
    reasons: Mapping[str, int]
    preemptions: int
    merges: int
    steps: int
    iterations: int
    left_early: int
    truncated: int
    policy_failures: int
    queue_wait: Summary
    service: Summary
    latency: Summary
    models: Mapping[str, Stats] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values; distributions as mean_ms, p50_ms, p95_ms, p99_ms, max_ms."""
        plain: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Summary):
                value = value.as_ms()
            elif name == "models":
                value = {model: stats.as_dict() for model, stats in value.items()}
            elif isinstance(value, Mapping):
                value = dict(value)
            plain[name] = value
        if not self.models:
            del plain["models"]
        return plain
