"""One measured pass: a sub-batch from its first node to its last, every node timed.

Owns: `Runner`, and how often it goes round a loop.
Must not know: which sizes are measured when, what becomes of the times.

In a loop all rows go round together, whether or not they are done: a table is of iterations, and how many a row makes
is another matter. The time of a loop's node is the median over the iterations of a pass: the first, which finds nothing
where it left it, and those that the machine interrupted do not count for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from lazybatch.core.graph import NodeGraph
from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Executor, Model, Row


def rounds_of(graph: NodeGraph, rows: Sequence[Row], iterations: int) -> tuple[int, ...]:
    """Per loop, how many iterations a pass makes: so many, but no more than any of the rows can."""
    rounds = []
    for number, loop in enumerate(graph.loops):
        known = [row.trips[number] for row in rows if row.trips]
        limits = [trips for trips in known if trips is not None]
        if loop.trips_max is not None and not limits:
            limits.append(max(1, loop.trips_max - 1))  # at the maximum a row that is not done may be an error
        rounds.append(min([iterations, *limits]))
    return tuple(rounds)


class Runner:
    """Runs passes through one executor. rounds: per loop of the model's graph, the iterations of a pass."""

    def __init__(
        self,
        model: Model,
        executor: Executor,
        rows: Sequence[Row],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        rounds: Sequence[int] = (),
    ) -> None:
        self.clock_ns = clock_ns
        self._name = model.name
        self._nodes = [node.name for node in model.graph.nodes]
        self._stages = [
            (range(stage.first, stage.stop), 1 if stage.loop is None else rounds[stage.loop])
            for stage in model.graph.stages()
        ]
        self._executor = executor
        in_step = getattr(executor, "in_step", None)
        if in_step is not None:
            in_step()
        limit = getattr(executor, "limit", None)
        if rounds and limit is not None:
            limit(rounds)
        self._rows = rows
        self._next_request = 0
        self._sub_batch = 0

    def run(self, size: int) -> list[int]:
        """One pass: the nodes' times in ns. Raises `ExecutionError` naming the node and the size."""
        executor, sub_batch = self._executor, self._sub_batch
        self._sub_batch += 1
        ids = range(self._next_request, self._next_request + size)
        self._next_request += size
        executor.open(sub_batch, {number: self._rows[number % len(self._rows)] for number in ids}, size)
        times_ns: list[int] = []
        try:
            for nodes, rounds in self._stages:
                times_ns += self._stage(sub_batch, size, nodes, rounds)
        except BaseException:
            executor.discard(sub_batch)
            raise
        for result in executor.close(sub_batch).values():
            if isinstance(result, Exception):
                raise ExecutionError(f"model {self._name!r}: a row failed at batch size {size}: {result}")
        return times_ns

    def _stage(self, sub_batch: int, size: int, nodes: range, rounds: int) -> list[int]:
        """The times of one chain, or of a loop, per iteration."""
        run, clock_ns = self._executor.run, self.clock_ns
        spent_ns: list[list[int]] = [[] for _ in nodes]
        for _ in range(rounds):
            for place, node in enumerate(nodes):
                start_ns = clock_ns()
                try:
                    run(sub_batch, node)
                except Exception as error:
                    raise ExecutionError(
                        f"model {self._name!r}: node {self._nodes[node]!r} failed at batch size {size}: {error}"
                    ) from error
                spent_ns[place].append(clock_ns() - start_ns)
        return [max(1, int(median(times_ns))) for times_ns in spent_ns]
