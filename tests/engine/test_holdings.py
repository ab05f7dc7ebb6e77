"""Holdings: rows that executors hold, moved as the scheduler says, and what is lost when an executor cannot follow."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lazybatch.core.task import Merge, Reason, Split, Task
from lazybatch.engine.holdings import Holdings
from lazybatch.engine.served import ServedModel
from tests.engine.loop_kit import Given, Rounds, RoundsExecutor, expected

MODEL = Rounds(3, (1, 2))
TRIPS = (1, 2, 2, 9)


class Keeper:
    """Holdings over a real executor, and what they told their owner. meet: merges that follow from a loss."""

    def __init__(self) -> None:
        self.served: ServedModel = MODEL.served()
        assert isinstance(self.served.executor, RoundsExecutor)
        self.executor = self.served.executor
        self.forgotten: list[int] = []
        self.lost: list[tuple[list[int], str]] = []
        self.joined: list[Merge] = []
        self.meet: list[Merge] = []
        self.held = Holdings(self.forgotten.append, self._lose, lambda merge, now: self.joined.append(merge))

    def _lose(self, request_ids: Iterable[int], what: str, error: BaseException, now: int) -> list[Merge]:
        self.lost.append((sorted(request_ids), what))
        meet, self.meet = self.meet, []
        return meet

    def open(self, sub_batch: int, *request_ids: int, nodes: int = 0) -> None:
        """A sub-batch that has run so many nodes; rows make as many trips as `TRIPS` says."""
        task = Task("rounds", sub_batch, 0, len(request_ids), len(request_ids), request_ids, None, Reason.START_IDLE)
        rows = {request_id: MODEL.admit(Given(request_id, (TRIPS[request_id],))) for request_id in request_ids}
        self.executor.open(sub_batch, rows, len(rows))
        self.held.open(self.served, task)
        for node in range(nodes):
            self.executor.run(sub_batch, node)

    def members(self) -> dict[int, list[int]]:
        """Request ids by sub-batch; the executor must hold the very same."""
        found = {sub_batch: members for sub_batch, (_, members) in self.held.members.items()}
        inside = {
            sub_batch: sorted(line.request for line in batch.lines)
            for sub_batch, batch in self.executor.batches.items()
        }
        assert inside == {sub_batch: sorted(members) for sub_batch, members in found.items()}
        return found


@pytest.fixture
def keeper() -> Keeper:
    """Nothing is held yet."""
    return Keeper()


def test_rows_leave_split_and_join(keeper: Keeper) -> None:
    """Members follow every move, in step with the executor."""
    keeper.open(0, 0, 1, 3, nodes=2)
    keeper.held.split(Split("rounds", 0, 1, (0,)), 5)
    assert keeper.members() == {0: [1, 3], 1: [0]}
    keeper.open(2, 2, nodes=1)
    keeper.held.merge([Merge("rounds", 0, 2)], 6)
    assert keeper.members() == {0: [1, 3, 2], 1: [0]}
    keeper.held.evict(0, (3,), 7)
    assert keeper.members() == {0: [1, 2], 1: [0]}
    keeper.executor.run(1, 2)
    assert keeper.held.leave(1, (0,), 8) == {0: expected(MODEL, Given(0, (1,)))}
    keeper.held.evict(0, (1, 2), 9)
    assert keeper.members() == {}
    assert (keeper.forgotten, keeper.lost) == ([3, 1, 2], [])
    assert keeper.joined == [Merge("rounds", 0, 2)]


def test_some_leave_a_last_loop() -> None:
    """The others stay; when nobody is left the sub-batch is closed."""
    model = Rounds(1, (0, 1))
    keeper = Keeper()
    keeper.served = model.served()
    keeper.executor = model.made[0]
    task = Task("rounds", 4, 0, 2, 2, (7, 8), None, Reason.START_IDLE)
    keeper.executor.open(4, {7: model.admit(Given(1, (1,))), 8: model.admit(Given(2, (2,)))}, 2)
    keeper.held.open(keeper.served, task)
    keeper.executor.run(4, 0)
    assert keeper.held.leave(4, (7,), 1) == {7: expected(model, Given(1, (1,)))}
    assert keeper.members() == {4: [8]}
    keeper.executor.run(4, 0)
    assert keeper.held.leave(4, (8,), 1) == {8: expected(model, Given(2, (2,)))}
    assert keeper.members() == {}


def test_newcomers_are_members_at_once(keeper: Keeper) -> None:
    """Where they join a running sub-batch, they are its rows before the node runs; a failure ends both."""
    keeper.open(0, 1)
    task = Task("rounds", 0, 0, 2, 2, (2,), None, Reason.JOIN_STEP, None, 1)
    keeper.held.open(keeper.served, task)
    assert keeper.held.members[0][1] == [1, 2]
    keeper.held.end(task)
    assert keeper.members() == {}
    assert [call for call in keeper.executor.calls if call[0] == "discard"] == [("discard", 0, 0), ("discard", 1, 0)]


def test_what_an_executor_cannot_do_loses_those_rows_only(keeper: Keeper) -> None:
    """An eviction, a split and a merge that fail: the sub-batches concerned are lost, what else is held goes on."""
    keeper.open(0, 0, 1, nodes=2)
    keeper.open(1, 2)
    keeper.executor.broken = {"evict", "split"}
    keeper.held.evict(0, (1,), 1)
    assert keeper.lost == [([0], "evicting rows failed")]
    assert keeper.held.leave(0, (0,), 2) is None, "lost before"
    keeper.held.split(Split("rounds", 0, 5, (0,)), 3)
    assert keeper.members() == {1: [2]}
    keeper.open(2, 0, 1, nodes=2)
    keeper.held.split(Split("rounds", 2, 3, (0,)), 4)
    assert keeper.lost[1:] == [([0, 1], "splitting a sub-batch failed")]
    keeper.open(4, 1)
    keeper.executor.broken = {"merge", "discard"}
    keeper.held.merge([Merge("rounds", 1, 4)], 5)
    assert keeper.lost[2:] == [([1, 2], "merging sub-batches failed")]
    assert keeper.held.members == {}


def test_results_that_cannot_be_had(keeper: Keeper) -> None:
    """Those who leave get the error for a result; those who would have stayed are lost."""
    keeper.open(0, 0, 1, 3, nodes=2)
    keeper.executor.broken = {"leave", "close"}
    results = keeper.held.leave(0, (0,), 1)
    assert results is not None
    assert isinstance(results[0], RuntimeError)
    assert keeper.lost == [([1, 3], "taking rows out of a loop failed")]
    keeper.open(1, 0, nodes=2)
    results = keeper.held.leave(1, (0,), 2)
    assert results is not None
    assert isinstance(results[0], RuntimeError)
    assert keeper.members() == {}


def test_merges_that_follow_from_a_loss_come_last(keeper: Keeper) -> None:
    """The scheduler decided them later, so they are carried out behind all that was decided before."""
    keeper.open(0, 1)
    keeper.open(1, 2)
    keeper.open(2, 3, nodes=1)
    keeper.open(3, 0)
    keeper.meet = [Merge("rounds", 3, 0)]
    keeper.executor.broken = {"evict"}
    keeper.open(4, 1, 2, nodes=1)
    keeper.held.evict(4, (1,), 1)
    keeper.executor.broken = set()
    keeper.held.merge([Merge("rounds", 0, 1)], 2)
    assert keeper.joined == [Merge("rounds", 0, 1), Merge("rounds", 3, 0)]
    assert keeper.members() == {2: [3], 3: [0, 1, 2]}
    assert keeper.held.later == []


def test_merges_with_what_is_lost(keeper: Keeper) -> None:
    """A source that is lost leaves its target whole; a target that is lost takes its source with it."""
    keeper.open(0, 0)
    keeper.held.merge([Merge("rounds", 0, 9)], 1)
    assert keeper.members() == {0: [0]}
    keeper.held.merge([Merge("rounds", 9, 0)], 2)
    assert keeper.lost == [([0], "merging sub-batches failed")]
    assert keeper.members() == {}


def test_clearing(keeper: Keeper) -> None:
    """Everything is discarded, except what another thread still runs."""
    keeper.open(0, 0)
    keeper.held.later = [Merge("rounds", 0, 1)]
    keeper.held.clear(but=lambda model: model == "rounds")
    assert set(keeper.executor.batches) == {0}
    assert (keeper.held.members, keeper.held.later) == ({}, [])
    keeper.open(1, 1)
    keeper.held.clear(but=lambda model: False)
    assert set(keeper.executor.batches) == {0}


def test_an_executor_that_cannot_discard_is_logged(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    """Naming the model; nothing is raised."""
    keeper.open(0, 0)
    keeper.executor.broken = {"discard"}
    keeper.held.evict(0, (0,), 1)
    assert "the executor of model 'rounds' could not discard" in caplog.text
