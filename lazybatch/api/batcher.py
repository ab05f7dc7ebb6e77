"""The batcher: submit, predict, stats, shutdown.

Owns: `LazyBatcher`, the public object over one engine; all-or-nothing calls of several rows; the asyncio twins.
Must not know: how the engine runs and is started (`api.service`), how options are turned into lanes (`api.assembly`),
how inputs become rows (`api.intake`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, wait
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

from lazybatch.api import assembly
from lazybatch.api.intake import Intake
from lazybatch.api.lengths import lengths_of
from lazybatch.api.outcomes import outcomes
from lazybatch.api.service import start
from lazybatch.api.streaming import AsyncStream, Stream
from lazybatch.config import BatcherOptions, Level, RequestLimits, flag, seconds, whole
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Policy
from lazybatch.engine import MonotonicClock, Stats
from lazybatch.executors.base import MemoryPlan, Model
from lazybatch.explanation import Explanation, latest
from lazybatch.metrics import Observer

PerModel = Mapping[str, Any]


class LazyBatcher:
    """Serves one or several models, batching rows of concurrent callers.

    models: a model from `lazybatch.load`, a callable ``list[inputs] -> list[outputs]``, or a mapping from names to
    such; with a mapping of several, every call says ``model=``.
    table: latency table (per model a mapping); measured on the spot, for a few seconds, where the policy needs one.
    sla: soft target in seconds from submit to result.
    policy: "lookahead" (default), "graph" (default for callables without a table or with several workers, and where
    max_delay or size_budget is set), "lazy", "oracle", "aimd", "continuous", "cellular",
    "serial"; or a policy object (see `lazybatch.core.policies.base.Policy`), which serves one batcher at a time because
    it may remember what it saw.
    max_batch_size: rows in one batch. queue_capacity: waiting rows; besides them, rows in flight are bounded by
    max_batch_size per model and worker. allowed_batch_sizes: sizes to execute, batches are padded up to one; refused
    for models with loops, whose batches change at every iteration and are executed as they are.
    late: "serve" (default) answers late rows too; "drop" fails a waiting row with `DeadlineExceeded` from the moment it
    could not meet its target even if it ran alone, and needs a latency table. Rows that have started are never dropped.
    table, sla, max_batch_size, queue_capacity, allowed_batch_sizes and late may be mappings by model name.
    lengths: of models with loops, how many iterations rows made: a `LengthGuess` per loop, in order or by the loops'
    names, as `lazybatch.load_lengths` reads them; with several models a mapping from their names to such. Without it,
    policies reckon with a loop's maximum, and with one iteration where it has none.
    max_delay, size_budget: of policy "graph", see `BatcherOptions`; max_delay counts from the oldest waiting row.
    workers: concurrent calls of a callable. length_bucket_width: for callables, see `CallableModel`.
    levels, ageing: priorities' queue timeouts, and seconds of waiting that raise a row by one priority.
    isolate_failures: rows of a failed batch run again, each alone, so that a bad row fails only itself.
    observers: see `lazybatch.metrics.Observer`. trace: file to write the schedule to, as a Perfetto/Chrome trace.
    allow_foreign_table: accept a table measured for another file or on another machine.

    All methods may be called from any thread. A context manager: leaving it drains and shuts down. A batcher that is
    dropped without shutdown finishes what it accepted; at interpreter exit, rows that wait fail with `ShuttingDown`.

    Raises `InvalidInput` for options that are out of range or contradict each other, `TableMismatch`, `ModelError`.
    """

    def __init__(
        self,
        models: Model | Callable[..., Any] | Mapping[str, Any],
        *,
        table: LatencyTable | Mapping[str, LatencyTable] | None = None,
        sla: float | PerModel | None = None,
        policy: str | Policy | None = None,
        max_batch_size: int | PerModel = 16,
        queue_capacity: int | PerModel = 256,
        late: Literal["serve", "drop"] | PerModel = "serve",
        lengths: Any = None,
        max_delay: float = 0.0,
        workers: int = 1,
        length_bucket_width: int = 0,
        allowed_batch_sizes: Sequence[int] | PerModel = (),
        size_budget: int | None = None,
        levels: Mapping[int, Level] | None = None,
        ageing: float | None = None,
        isolate_failures: bool = True,
        observers: Iterable[Observer] = (),
        trace: str | Path | None = None,
        allow_foreign_table: bool = False,
        name: str | None = None,
    ) -> None:
        flag("allow_foreign_table", allow_foreign_table)
        self._models = assembly.as_models(models, length_bucket_width=length_bucket_width, name=name)
        if policy is None:
            knobs = bool(max_delay or size_budget)
            policy = assembly.default_policy(self._models, table, workers=workers, knobs=knobs)
        options = BatcherOptions(
            policy=policy,
            max_delay=max_delay,
            size_budget=size_budget,
            workers=workers,
            levels={} if levels is None else levels,
            ageing=ageing,
            isolate_failures=isolate_failures,
        )
        limits = {
            "sla": sla,
            "max_batch_size": max_batch_size,
            "queue_capacity": queue_capacity,
            "late": late,
            "allowed_batch_sizes": allowed_batch_sizes,
        }
        guesses = lengths_of(lengths, {key: model.graph for key, model in self._models.items()})
        served = assembly.assemble(
            self._models, options, table=table, allow_foreign_table=allow_foreign_table, limits=limits
        )
        lanes = assembly.to_lanes(served, options, guesses)
        chosen = assembly.make_policy(options, lanes)
        self._tables = {one.name: one.table for one in served}
        clock = MonotonicClock()
        self._start_ns = clock.now_ns()
        self._graphs = {lane.graph.model: lane.graph for lane in lanes}
        service = start(served, lanes, chosen, options, observers=observers, trace=trace, clock=clock, name=name)
        self._engine, self._executors, self._called = service
        self._intake = Intake(self._models, self._engine, clock)
        # The engine's thread must not keep a forgotten batcher alive; once that is gone, the engine drains and ends.
        weakref.finalize(self, self._engine.close).atexit = False

    # -- one row -------------------------------------------------------------------------------------------------

    def submit(
        self,
        inputs: Any,
        *,
        model: str | None = None,
        sla: float | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Future[Any]:
        """Hand in one row (no batch axis); never blocks. Inputs are copied before this returns.

        sla: soft target in seconds for this row; ``late`` of the batcher says what missing it means. timeout: hard
        limit in seconds; deadline: hard limit as a reading of `time.monotonic()`. priority: larger is more urgent.

        The future yields the row's outputs, or raises `ExecutionError`, `DeadlineExceeded`, `ShuttingDown`. A row that
        is not admitted comes back as an already failed future (`Overloaded`, `DeadlineExceeded`, `ShuttingDown`).
        ``cancel()`` works until the result is there. Raises `InvalidInput` for bad inputs or limits.
        """
        limits = RequestLimits(sla=sla, deadline=deadline, timeout=timeout, priority=priority)
        return self._intake.one(inputs, model, limits)

    def predict(self, inputs: Any, **options: Any) -> Any:
        """`submit`, and wait for the row's outputs. Takes the same options; raises what its future raises.

        Raises `SelfWait` when called on one of the batcher's own threads.
        """
        self._engine.refuse_self_wait("predict")
        future = self.submit(inputs, **options)
        try:
            return future.result()
        finally:
            future.cancel()  # does nothing unless the wait was interrupted

    async def apredict(self, inputs: Any, **options: Any) -> Any:
        """`predict` for asyncio, from any event loop. Cancelling the awaiting task cancels the row."""
        self._engine.refuse_self_wait("apredict")
        return await asyncio.wrap_future(self.submit(inputs, **options))

    def stream(self, inputs: Any, *, model: str | None = None, **limits: Any) -> Stream:
        """Hand in one row of a model with loops, and iterate over what it collects, step by step.

        limits: as of `submit`, which says what ends a row; such errors are raised by the iterator, behind the steps
        made before. See `Stream`. Raises `InvalidInput` for a model without loops, bad inputs or limits.
        """
        return Stream(self._intake.streaming(inputs, model, RequestLimits(**limits)))

    def astream(self, inputs: Any, *, model: str | None = None, **limits: Any) -> AsyncStream:
        """`stream` for asyncio, from any event loop: ``async for step in batcher.astream(inputs)``."""
        return AsyncStream(self._intake.streaming(inputs, model, RequestLimits(**limits)))

    # -- several rows --------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        inputs: Iterable[Any],
        *,
        model: str | None = None,
        sla: float | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        priority: int = 0,
    ) -> list[Future[Any]]:
        """Hand in several rows, all or none of which are admitted; one future per row, in order. See `submit`."""
        limits = RequestLimits(sla=sla, deadline=deadline, timeout=timeout, priority=priority)
        return [*self._intake.several(inputs, model, limits)]

    def predict_batch(self, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Any) -> list[Any]:
        """Outputs of several rows, in the caller's order. Admission is all or nothing; options as of `submit`.

        When a row fails, the rows that are not done are cancelled and the error of the first failed row is raised. With
        ``return_exceptions`` every row is waited for, and errors stand in their rows' places.
        Raises `Overloaded`, `ShuttingDown`, `InvalidInput` (also for an empty batch), `SelfWait`.
        """
        self._engine.refuse_self_wait("predict_batch")
        futures = self.submit_batch(inputs, **options)
        try:
            wait(futures, return_when=ALL_COMPLETED if return_exceptions else FIRST_EXCEPTION)
            return outcomes(futures, return_exceptions)
        finally:
            for future in futures:
                future.cancel()

    async def apredict_batch(
        self, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Any
    ) -> list[Any]:
        """`predict_batch` for asyncio. Cancelling the awaiting task cancels all its rows."""
        self._engine.refuse_self_wait("apredict_batch")
        futures = self.submit_batch(inputs, **options)
        waiting = [asyncio.wrap_future(future) for future in futures]
        try:
            await asyncio.wait(waiting, return_when=ALL_COMPLETED if return_exceptions else FIRST_EXCEPTION)
            return outcomes(futures, return_exceptions)
        finally:
            for one in waiting:
                if not one.cancel() and not one.cancelled():
                    one.exception()  # it has been reported; asyncio need not log that nobody asked

    # -- watching and ending -------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """One consistent snapshot of all counters."""
        return self._engine.stats()

    def decisions(self, last: int = 50, *, model: str | None = None) -> list[Explanation]:
        """The latest decisions, oldest first: what was started or held back, why, and the costs compared.

        Each is a frozen record whose ``str`` is a sentence; times count from when the batcher was made. Sub-batches
        that merely went on are left out. The log reaches back over some 100,000 node runs. model: only this model's
        decisions.
        Raises `InvalidInput` for an unknown model or a number that is none.
        """
        whole("last", last, 0, 1 << 31)
        graphs = self._graphs
        if model is not None:
            name = self._intake.name(model)
            graphs = {lane: graph for lane, graph in graphs.items() if self._called[lane] == name}
        return latest(self._engine.decisions(), graphs, last, start_ns=self._start_ns)

    @property
    def abandoned(self) -> bool:
        """Whether this is a copy in a forked child, where no thread serves it; it admits nothing."""
        return self._engine.abandoned

    @property
    def models(self) -> Mapping[str, Model]:
        """The models by the names that ``model=`` takes."""
        return MappingProxyType(self._models)

    @property
    def tables(self) -> Mapping[str, LatencyTable | None]:
        """The latency tables in use, by model."""
        return MappingProxyType(self._tables)

    @property
    def memory(self) -> Mapping[str, MemoryPlan]:
        """What each model's executor plans to use, for those that plan."""
        plans = {name: assembly.memory_of(executor) for name, executor in self._executors.items()}
        return MappingProxyType({name: plan for name, plan in plans.items() if plan is not None})

    def shutdown(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Close admission and end; True once everything has ended.

        drain: run all accepted rows first. Without it, waiting rows fail with `ShuttingDown` at once and rows in flight
        at the next node boundary; a call of a callable that is running is let finish, and its rows get their results.
        timeout: seconds to wait; when they are over, whatever has no result yet fails with `ShuttingDown` and the
        answer is False: a node is still running. A later call waits for that node again.
        Idempotent; may be called from several threads at once. Raises `SelfWait` on the batcher's own threads.
        """
        flag("drain", drain)
        return self._engine.shutdown(drain, None if timeout is None else seconds("timeout", timeout, zero=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.shutdown()
