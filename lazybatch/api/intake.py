"""Where rows come in: which model is meant, whether what was given is good, and into the engine with it.

Owns: `Intake`.
Must not know: what becomes of a row once it is handed in; asyncio; how models and their limits came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lazybatch.api.streaming import Sink, Submit
from lazybatch.config import RequestLimits, to_ns
from lazybatch.engine import Engine, MonotonicClock
from lazybatch.engine.entry import RequestFuture
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Model, Row


class Intake:
    """Admits rows of these models, by the names callers use, to one engine. Safe to use from any thread.

    Inputs that are refused are counted by the engine.
    """

    def __init__(self, models: Mapping[str, Model], engine: Engine, clock: MonotonicClock) -> None:
        self._models = models
        self._only = next(iter(models)) if len(models) == 1 else None
        self._engine = engine
        self._clock = clock

    def name(self, model: str | None) -> str:
        """The model that is meant. Raises `InvalidInput` for an unknown one, and for None where there are several."""
        if model is None:
            if self._only is None:
                raise InvalidInput(f"several models are served, say model= with one of {', '.join(self._models)}")
            return self._only
        if not isinstance(model, str) or model not in self._models:
            raise InvalidInput(f"unknown model {model!r}; known are {', '.join(self._models)}")
        return model

    def one(self, inputs: Any, model: str | None, limits: RequestLimits) -> RequestFuture:
        """Hand in one row. Raises `InvalidInput`; what else keeps it out is in its future."""
        name = self.name(model)
        return self._hand_in(name, [self._admit(name, inputs)], limits)[0]

    def several(self, inputs: Iterable[Any], model: str | None, limits: RequestLimits) -> list[RequestFuture]:
        """Hand in several rows, all or none. Raises `InvalidInput`, naming the first bad row."""
        name = self.name(model)
        return self._hand_in(name, self._admit_all(name, inputs), limits)

    def streaming(self, inputs: Any, model: str | None, limits: RequestLimits) -> Submit:
        """One row, admitted, to be handed in as soon as it is known where its steps go. Raises `InvalidInput`."""
        name = self.name(model)
        if not self._models[name].graph.loops:
            raise InvalidInput(f"model {name!r} has no loop, so it makes no steps to stream; use predict or submit")
        rows = [self._admit(name, inputs)]
        return lambda sink: self._hand_in(name, rows, limits, sink)[0]

    def _admit(self, name: str, inputs: Any) -> Row:
        try:
            return self._models[name].admit(inputs)
        except InvalidInput:
            self._engine.reject_invalid(name, 1)
            raise

    def _admit_all(self, name: str, inputs: Iterable[Any]) -> list[Row]:
        if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
            raise InvalidInput(f"a batch is a sequence of rows, got {type(inputs).__name__}")
        given = list(inputs)
        if not given:
            raise InvalidInput("the batch is empty: at least one row is needed")
        admit = self._models[name].admit
        rows: list[Row] = []
        try:
            for row in given:
                rows.append(admit(row))
        except InvalidInput as error:
            self._engine.reject_invalid(name, len(given))
            raise type(error)(f"row {len(rows)} of the batch: {error}") from error
        return rows

    def _hand_in(
        self, name: str, rows: Sequence[Row], limits: RequestLimits, sink: Sink | None = None
    ) -> list[RequestFuture]:
        return self._engine.submit(
            name,
            rows,
            sla_ns=None if limits.sla is None else to_ns(limits.sla),
            limit_ns=limits.hard_ns(self._clock.now_ns()),
            priority=limits.priority,
            sink=sink,
        )
