"""The policy as the scheduler may rely on it: whatever it does, something that can be done is decided.

Owns: `GuardedPolicy`: asking the policy, checking its answers, standing in for it; the hooks of policies that learn.
Must not know: how a choice is carried out, any particular policy but the one that stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.counts import Counts
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Policy, Start, Stay, View, Wait
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.core.request import Request
from lazybatch.errors import InvalidInput


class GuardedPolicy:
    """A policy that may raise and answer anything, as it may come from outside.

    lanes: the models that may be started. counts: where failures are counted.
    """

    def __init__(self, policy: Policy, lanes: Mapping[str, Lane], processors: int, counts: Counts) -> None:
        self.policy = policy
        self.error: Exception | None = None
        """What the policy did wrong the last time it failed."""
        self.arrived: Callable[[Request], None] | None = getattr(policy, "arrived", None)
        self.completed: Callable[[SubBatch, int], None] | None = getattr(policy, "completed", None)
        self.ran: Callable[[Lane, int, int, int], None] | None = getattr(policy, "ran", None)
        self._lanes = lanes
        self._processors = processors
        self._counts = counts
        self._fallback = GraphBatching()

    def choose(self, view: View, active: SubBatch | None, now: int) -> Choice:
        """What the policy wants; a policy that raises or asks for the impossible must not stop the server.

        active: the view's active sub-batch. The answer can be carried out; it is None or Stay only where there is one.
        """
        try:
            choice = self.policy.decide(view, now)
            if (choice is None and active is not None) or self._possible(choice, view, active, now):
                return choice
            self.error = InvalidInput(f"policy {self.policy!r} chose what cannot be done: {choice!r}"[:300])
        except Exception as error:
            self.error = error
        self._counts.policy_failures += 1
        return self._fallback.decide(view, now)

    def tell(self, hook: Callable[..., None], *news: object) -> None:
        """Let the policy know, by one of its hooks; that it cannot cope is counted and stops nothing."""
        try:
            hook(*news)
        except Exception as error:
            self.error = error
            self._counts.policy_failures += 1

    def _possible(self, choice: Choice, view: View, active: SubBatch | None, now: int) -> bool:
        """Whether this can be done, and leads anywhere."""
        if choice is None or type(choice) is Stay:
            return active is not None
        if type(choice) is Start:
            lane = choice.lane
            room = min(lane.rows_max, lane.rows_max * self._processors - lane.table.rows)
            return (
                self._lanes.get(lane.model) is lane
                and 1 <= choice.rows <= room
                and 0 <= choice.skip < len(lane.queue)
                and (choice.skip == 0 or len(lane.queue.peek(now, 1, skip=choice.skip)) > 0)
                and (not choice.riders or self._may_ride(choice, room, now))
            )
        if type(choice) is not Wait or active is not None:
            return False
        if choice.until_ns is None:  # for news: there must be some to come, and what is in flight now is running
            return bool(view.stack) or not view.draining
        return choice.until_ns > now

    def _may_ride(self, choice: Start, room: int, now: int) -> bool:
        """Whether rows of other lanes can be taken along into a batch that can start."""
        batch = choice.lane.queue.peek(now, choice.rows, choice.size_budget, choice.skip)
        models = [model for model, _ in choice.riders]
        if len(batch) + sum(rows for _, rows in choice.riders) > room or len(set(models)) < len(models):
            return False
        for model, rows in choice.riders:
            other = self._lanes.get(model)
            if other is None or choice.lane.model not in other.spec.wider:
                return False
            riding = other.queue.peek(now, rows)
            if rows < 1 or len(riding) < rows or riding[0].signature != batch[0].signature:
                return False
        return True
