"""What is measured on a device, one model at a time: answers, chain against module, open-loop load.

Owns: `Subject` and the runs. Must not know: which models are run, in which order, how long the whole takes.

Only torch, NumPy and the checkout itself are needed; nothing of the demo, and no ONNX Runtime.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

import lazybatch as lb
from bench.common import interleave, ratio
from lazybatch.workload import poisson

WARM_UP = 0.1
TARGETS = (3.0, 6.0, 12.0)
"""SLA targets, in times that a row takes alone."""
_END_S = 60.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on its device. rows: a maker of rows, from a number and a seed. module: the whole, for static models.

    lengths: how often rows go round, as was seen of others, for models with loops.
    """

    name: str
    model: Any
    rows: Callable[[int, int], list[dict[str, Any]]]
    module: Any = None
    device: str = "cpu"
    lengths: Any = None

    @property
    def loops(self) -> bool:
        """Whether rows go round."""
        return bool(self.model.graph.loops)

    def settle(self) -> None:
        """Return when the device has done all that it was asked to."""
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()


# -- answers -----------------------------------------------------------------------------------------------------------


def deviation(subject: Subject, count: int = 6, seed: int = 1) -> float:
    """Largest deviation, over the largest magnitude, of rows that were parked and merged from the module's own answer.

    A sub-batch is opened at every other node, catches up, and is merged into the one below; all with one row each.
    """
    model, rows = subject.model, subject.rows(count, seed)
    executor = model.executor(max_batch_size=count)
    nodes = len(model.graph)
    try:
        executor.open(0, {0: model.admit(rows[0])}, 1)
        at, waiting = 0, list(range(1, count))
        while at < nodes:
            executor.run(0, at)
            at += 1
            if waiting and at < nodes and at % 2:
                k = waiting.pop()
                executor.open(k, {k: model.admit(rows[k])}, 1)
                for node in range(at):
                    executor.run(k, node)
                executor.merge(0, k)
        answers = executor.close(0)
    finally:
        executor.shutdown()
    worst = 0.0
    for k, got in answers.items():
        for name, value in _alone(subject, rows[k]).items():
            worst = max(worst, float(np.abs(got[name] - value).max() / np.abs(value).max()))
    return worst


def _alone(subject: Subject, row: Mapping[str, Any]) -> dict[str, Any]:
    whole = subject.model.whole_call()
    return {name: value[0] for name, value in whole({name: np.asarray(one)[None] for name, one in row.items()}).items()}


def unrecorded(subject: Subject) -> dict[str, str]:
    """Nodes that were not recorded though the device records, and why. Only for static models."""
    model = subject.model
    executor = model.executor(max_batch_size=1)
    frames = getattr(executor, "frames", None)
    executor.shutdown()
    return {} if frames is None else dict(frames.unrecorded)


def agreement(subject: Subject, count: int, seed: int = 1) -> float:
    """Of a model with loops: the share of rows whose answer together with others is exactly that of the row alone."""
    rows = subject.rows(count, seed)
    answers = {}
    for policy in ("serial", "continuous"):
        with lb.LazyBatcher(subject.model, policy=policy, max_batch_size=8) as batcher:
            answers[policy] = batcher.predict_batch(rows)
    pairs = zip(answers["serial"], answers["continuous"], strict=True)
    return statistics.fmean(all(np.array_equal(one[name], two[name]) for name in one) for one, two in pairs)


# -- chain against module ----------------------------------------------------------------------------------------------


def chain_over_whole(subject: Subject, batch: int, within_s: float) -> dict[str, Any]:
    """A batch node by node over the module itself, both on tensors that lie on the device; with and without recordings.

    Medians of ratios, interleaved, the device settled before the clock is read.
    """
    import torch

    rows = subject.rows(batch, 2)
    model = subject.model
    admitted = {k: model.admit(row) for k, row in enumerate(rows)}
    given = [torch.from_numpy(np.stack([row[name] for row in rows])).to(subject.device) for name in rows[0]]
    nodes = range(len(model.graph))
    executors = {}
    kept = model.recorder
    try:
        if kept is not None:
            executors["recorded"] = model.executor(max_batch_size=batch)
        model.recorder = None
        executors["as it is"] = model.executor(max_batch_size=batch)
    finally:
        model.recorder = kept

    def chain(executor: Any) -> Callable[[], int]:
        def call() -> int:
            executor.open(0, admitted, batch)
            subject.settle()
            start_ns = time.perf_counter_ns()
            for node in nodes:
                executor.run(0, node)
            subject.settle()
            spent_ns = time.perf_counter_ns() - start_ns
            executor.discard(0)
            return spent_ns

        return call

    def whole() -> int:
        subject.settle()
        start_ns = time.perf_counter_ns()
        with torch.inference_mode():
            subject.module(*given)
        subject.settle()
        return time.perf_counter_ns() - start_ns

    sides = {name: chain(executor) for name, executor in executors.items()} | {"whole": whole}
    times: dict[str, list[int]] = {name: [] for name in sides}

    def noted(name: str, call: Callable[[], int]) -> Callable[[], None]:
        return lambda: times[name].append(call())

    rounds = interleave({name: noted(name, call) for name, call in sides.items()}, 200, warm_up=3, within_s=within_s)
    count = len(rounds["whole"])
    times = {name: spent[-count:] for name, spent in times.items()}
    for executor in executors.values():
        executor.shutdown()
    made: dict[str, Any] = {"batch": batch, "nodes": len(nodes), "whole_ms": statistics.median(times["whole"]) / 1e6}
    for name in executors:
        made[f"{name.replace(' ', '_')}_over_whole"] = ratio(times[name], times["whole"])
    return made


# -- load --------------------------------------------------------------------------------------------------------------


def capacity_rps(subject: Subject, rows_max: int, batches: int = 3) -> float:
    """Rows per second of whole batches when there is always more than the device can do."""
    rows = subject.rows(rows_max * batches, 3)
    with lb.LazyBatcher(subject.model, policy="graph", max_batch_size=rows_max, queue_capacity=100_000) as batcher:
        batcher.predict_batch(rows[:rows_max])
        start_ns = time.perf_counter_ns()
        batcher.predict_batch(rows)
        return len(rows) * 1e9 / (time.perf_counter_ns() - start_ns)


def alone_ms(subject: Subject, count: int = 8) -> float:
    """What a row takes alone, from submit to result: the median."""
    with lb.LazyBatcher(subject.model, policy="serial") as batcher:
        spent = []
        for row in subject.rows(count + 2, 4):
            start_ns = time.perf_counter_ns()
            batcher.predict(row)
            spent.append((time.perf_counter_ns() - start_ns) / 1e6)
    return statistics.median(spent[2:])


def offered(
    subject: Subject, rate_rps: float, seconds: float, seed: int, single_ms: float, options: Mapping[str, Any]
) -> dict[str, float]:
    """One open-loop run: latencies in ms from submit to result, and the share of rows that miss each target."""
    arrivals = poisson(rate_rps, max(10, round(rate_rps * seconds)), seed)
    rows = subject.rows(min(64, len(arrivals)), 5)
    chance = random.Random(seed)
    ends_ms: list[float | None] = [None] * len(arrivals)
    left = threading.Semaphore(0)

    def noting(number: int, submit_ns: int) -> Callable[[Future[Any]], None]:
        def note(future: Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                ends_ms[number] = (time.perf_counter_ns() - submit_ns) / 1e6
            left.release()

        return note

    with lb.LazyBatcher(subject.model, queue_capacity=100_000, **options) as batcher:
        batcher.predict_batch(rows[: options["max_batch_size"]])
        start_ns = time.perf_counter_ns()
        for number, at_ns in enumerate(arrivals):
            wait_s = (start_ns + at_ns - time.perf_counter_ns()) / 1e9
            if wait_s > 0:
                time.sleep(wait_s)
            submit_ns = time.perf_counter_ns()
            batcher.submit(chance.choice(rows)).add_done_callback(noting(number, submit_ns))
        until_s = time.monotonic() + _END_S
        for _ in arrivals:
            left.acquire(timeout=max(0.0, until_s - time.monotonic()))
        batcher.shutdown(drain=False)
    return summary(ends_ms, single_ms)


def summary(ends_ms: Sequence[float | None], single_ms: float) -> dict[str, float]:
    """Mean and tail, warm-up excluded. Rows without an answer are failed, and miss every target."""
    kept = list(ends_ms)[int(WARM_UP * len(ends_ms)) :]
    done = sorted(one for one in kept if one is not None)
    found: dict[str, float] = {
        "mean_ms": statistics.fmean(done) if done else float("inf"),
        "p99_ms": done[int(0.99 * len(done))] if done else float("inf"),
        "failed": float(len(kept) - len(done)),
    }
    for times in TARGETS:
        met = sum(one <= times * single_ms for one in done)
        found[f"missed_at_{times:g}x"] = 1 - met / len(kept)
    return found
