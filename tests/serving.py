"""Serving requests for a test: an executor driven by hand, preempted and merged at random, or a whole batcher.

Owns: `answer`, what a caller must get for a single run's outputs; the drivers of an executor `together` and
`interleaved`; `batched`, the same through the public API.
Must not know: how rows are laid out, how the scheduler decides.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import lazybatch as lb
from lazybatch.partition.pieces import Kind


def answer(model: Any, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """A single run's outputs as a caller gets them: a row of a ROWS output loses its batch axis, nothing else changes.

    A row that owns several indices of the axis keeps the axis.
    """
    made = {}
    for name, array in outputs.items():
        boundary = model.partition.boundaries[name]
        row = boundary.kind is Kind.ROWS and boundary.unit
        if row and not model.joinable:  # not proved: what is no single row stays as it is
            row = array.ndim > boundary.axis and array.shape[boundary.axis] == 1
        made[name] = np.squeeze(array, boundary.axis) if row else array
    return made


def together(model: Any, requests: Sequence[Mapping[str, Any]], max_batch_size: int = 8) -> list[dict[str, Any]]:
    """All requests in as few sub-batches as their signatures allow, each run from the first node to the last."""
    rows = [model.admit(request) for request in requests]
    executor = model.executor(max_batch_size=max_batch_size if model.joinable else 1)
    answers: dict[int, Any] = {}
    waiting = list(range(len(rows)))
    number = 0
    try:
        while waiting:
            first = rows[waiting[0]].signature
            most = max_batch_size if model.joinable else 1
            batch = [k for k in waiting if rows[k].signature == first][:most]
            waiting = [k for k in waiting if k not in batch]
            executor.open(number, {k: rows[k] for k in batch}, len(batch))
            for node in range(len(model.graph)):
                executor.run(number, node)
            answers |= executor.close(number)
            number += 1
    finally:
        executor.shutdown()
    return [answers[k] for k in range(len(rows))]


def flat_table(model: Any, node_ns: int = 20_000) -> lb.LatencyTable:
    """A latency table with equal nodes that gain from batching, so that a policy has reason to join rows."""
    times = tuple((node_ns, 2 * node_ns) for _ in model.graph.nodes)
    return lb.LatencyTable(
        model=model.name,
        nodes=tuple(node.name for node in model.graph.nodes),
        batch_sizes=(1, 16),
        median_ns=times,
        high_ns=times,
    )


def batched(
    model: Any, requests: Sequence[Mapping[str, Any]], policy: str, clients: int = 4, **options: Any
) -> list[dict[str, Any]]:
    """All requests through a `LazyBatcher`, submitted by several threads at once; answers in the order of requests."""
    table = {"table": flat_table(model), "sla": 10.0} if policy == "lazy" else {}
    futures: list[Any] = [None] * len(requests)
    start = threading.Barrier(clients)

    def submit(first: int) -> None:
        start.wait()
        for k in range(first, len(requests), clients):
            futures[k] = batcher.submit(requests[k])

    with lb.LazyBatcher(model, policy=policy, **table, **options) as batcher:
        threads = [threading.Thread(target=submit, args=(first,)) for first in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [future.result(timeout=120) for future in futures]


@dataclass
class _SubBatch:
    number: int
    requests: list[int]
    signature: Any
    cursor: int = 0


def interleaved(
    model: Any,
    requests: Sequence[Mapping[str, Any]],
    seed: int,
    max_batch_size: int = 8,
    evict: float = 0.0,
) -> tuple[list[dict[str, Any] | None], int]:
    """Newcomers preempt at random, catch up, and merge; returns the answers and the number of merges.

    evict: chance per step of a random row being cancelled; its answer is None.
    """
    return _Interleaving(model, requests, seed, max_batch_size, evict).run()


class _Interleaving:
    """A stack of sub-batches, as in a batch table, with chance for a policy."""

    def __init__(
        self, model: Any, requests: Sequence[Mapping[str, Any]], seed: int, max_batch_size: int, evict: float
    ) -> None:
        self.model, self.chance, self.evict_chance = model, random.Random(seed), evict
        self.rows_max = max_batch_size if model.joinable else 1
        self.rows = {k: model.admit(request) for k, request in enumerate(requests)}
        self.waiting = list(self.rows)
        self.chance.shuffle(self.waiting)
        self.stack: list[_SubBatch] = []
        self.answers: list[dict[str, Any] | None] = [None] * len(requests)
        self.merges = self.opened = 0
        self.executor = model.executor(max_batch_size=self.rows_max)

    def run(self) -> tuple[list[dict[str, Any] | None], int]:
        try:
            while self.waiting or self.stack:
                room = self.rows_max - sum(len(batch.requests) for batch in self.stack)
                if self.waiting and room and (not self.stack or self.chance.random() < 0.4):
                    self._open(room)
                else:
                    self._step()
                self._merge()
                if self.stack and self.chance.random() < self.evict_chance:
                    self._evict()
        finally:
            self.executor.shutdown()
        return self.answers, self.merges

    def _open(self, room: int) -> None:
        first = self.rows[self.waiting[0]].signature
        alike = [k for k in self.waiting if self.rows[k].signature == first]
        batch = alike[: self.chance.randint(1, room)]
        self.waiting = [k for k in self.waiting if k not in batch]
        padded = self.chance.randint(len(batch), room) if self.chance.random() < 0.3 else len(batch)
        self.executor.open(self.opened, {k: self.rows[k] for k in batch}, padded)
        self.stack.append(_SubBatch(self.opened, batch, first))
        self.opened += 1

    def _step(self) -> None:
        top = self.stack[-1]
        self.executor.run(top.number, top.cursor)
        top.cursor += 1
        if top.cursor == len(self.model.graph):
            self.stack.pop()
            results = self.executor.close(top.number)
            assert set(results) == set(top.requests), "close must return exactly the live rows"
            for request, result in results.items():
                self.answers[request] = result

    def _merge(self) -> None:
        while len(self.stack) > 1:
            below, top = self.stack[-2:]
            if below.cursor != top.cursor or below.signature != top.signature:
                return
            self.executor.merge(below.number, top.number)
            below.requests += top.requests
            self.stack.pop()
            self.merges += 1

    def _evict(self) -> None:
        batch = self.chance.choice(self.stack)
        gone = self.chance.choice(batch.requests)
        if len(batch.requests) == 1:
            self.executor.discard(batch.number)
            self.stack.remove(batch)
        else:
            self.executor.evict(batch.number, [gone])
            batch.requests.remove(gone)
