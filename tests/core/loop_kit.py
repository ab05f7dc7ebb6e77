"""Loops for the tests of the core.

Owns: short ways to write graphs with loops, and `LoopLedger`, which knows how often every row goes round, plays the
driver that finds it out step by step, and checks that rows leave when they should.
Must not know: engine, executors, real time.
"""

from __future__ import annotations

from typing import Any

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Completion, Merge, Task
from tests.core.kit import Ledger, linear


def loop_spec(
    nodes: int, *spans: tuple[int, int], table: LatencyTable | None = None, model: str = "m", **options: Any
) -> LaneSpec:
    """A lane whose graph has loops over these spans (first node, node behind the last)."""
    table = table or linear(model, nodes=nodes, fixed=3, per_row=1)
    loop_options = {name: options.pop(name) for name in ("same_iteration", "trips_max") if name in options}
    loops = [Loop(f"loop{n}", first, stop, **loop_options) for n, (first, stop) in enumerate(spans)]
    return LaneSpec(NodeGraph.chain(table.model, table.nodes, loops), table, **options)


class LoopLedger(Ledger):
    """Follows rows through graphs with loops.

    truth: by row, how many iterations it makes in each loop of its graph, whatever the scheduler is told.
    """

    def __init__(self, scheduler: Scheduler, *, whole: bool = False) -> None:
        super().__init__(scheduler)
        self.truth: dict[int, tuple[int, ...]] = {}
        self.whole = whole
        self.rounds: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.truncated: set[int] = set()

    def send(self, request: Request, *truth: int) -> None:
        """Queue a row that makes so many iterations."""
        self.add(request)
        self.truth[request.id] = truth

    def _opened(self, task: Task) -> None:
        for request_id in task.opened:
            self.rounds[request_id] = 0
            self.truncated.discard(request_id)
            self.waiting.discard(request_id)
        if task.joined is None:
            super()._opened(task)
            return
        assert task.joined not in self.members
        assert task.node == 0
        mates = self.members[task.sub_batch]
        assert set(mates.values()) == {0}, "they stand where newcomers do"
        self._check_iterations(task.model, {*mates, *task.opened})
        mates.update(dict.fromkeys(task.opened, 0))

    def complete(self, task: Task, now: int) -> Completion:
        """The task ran: find out who is done, and check who leaves."""
        self.running.remove(task)
        graph = self.scheduler.lane_of(task.model).spec.graph
        number = next((n for n, loop in enumerate(graph.loops) if loop.stop == task.node + 1), None)
        ids = self.members[task.sub_batch]
        done, leaving = self._round(number, graph, ids) if number is not None else (set(), set(ids))
        answer = self.scheduler.complete(task, now, done)
        ended = set() if number is None else (leaving - done) & self.truncated
        assert set(answer.truncated) == ended - set(answer.evicted)
        self._evict(task, answer.evicted)
        if number is not None:
            first = graph.loops[number].first
            ids.update(dict.fromkeys(ids, first))
            if self.whole:
                self.waiting |= leaving
                leaving = set(ids) if set(ids) <= self.waiting else set()
        leaving &= set(ids)
        for id in leaving:
            ids[id] = task.node + 1
            if number is not None:
                self.rounds[id] = 0
                self.waiting.discard(id)
        self._depart(task, answer, leaving, len(graph))
        return answer

    def _round(self, number: int, graph: NodeGraph, ids: dict[int, int]) -> tuple[set[int], set[int]]:
        """One more iteration: the rows that turn out to be done, and all whose last it was."""
        most = graph.loops[number].trips_max
        done: set[int] = set()
        over: set[int] = set()
        for id in set(ids) - self.waiting:
            self.rounds[id] += 1
            trips = self.truth[id][number]
            if self.rounds[id] == trips:
                over.add(id)
                if self.requests[id].trips_in(number) is None:
                    done.add(id)
            elif self.rounds[id] == most:
                over.add(id)
                self.truncated.add(id)
            if id in over and trips <= (most or trips):
                self.truncated.discard(id)  # it was so in a loop before
        return done, over

    def _depart(self, task: Task, answer: Completion, leaving: set[int], nodes: int) -> None:
        """Those who leave finish, or go on by themselves; an empty sub-batch is over."""
        ids = self.members[task.sub_batch]
        finished = {id for id in leaving if ids[id] == nodes}
        assert set(answer.finished) == finished
        for id in finished:
            del ids[id]
            self._leave(id, "finished")
        parted = leaving - finished if len(leaving) < len(ids) else set()
        assert parted == set(() if answer.split is None else answer.split.requests)
        if answer.split is not None:
            assert answer.split.source == task.sub_batch
            assert answer.split.target not in self.members
            self.members[answer.split.target] = {id: ids.pop(id) for id in answer.split.requests}
        if not ids:
            del self.members[task.sub_batch]
        self._merge(answer.merges)

    def _merge(self, merges: tuple[Merge, ...]) -> None:
        for merge in merges:
            self._check_iterations(merge.model, {*self.members[merge.source], *self.members[merge.target]})
        super()._merge(merges)

    def _check_iterations(self, model: str, ids: set[int]) -> None:
        graph = self.scheduler.lane_of(model).spec.graph
        if graph.loops and graph.loops[0].same_iteration:
            assert len({self.rounds[id] for id in ids - self.waiting}) <= 1, "only equal iterations mix"
