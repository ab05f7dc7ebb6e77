"""A model whose rows are padded to a few lengths, so that rows of many lengths share batches.

Owns: `PaddedModel` (rows padded when they are admitted, answers trimmed) and `PaddedExecutor`, over those of any
partitioned model.
Must not know: the scheduler, how nodes are run, where rows lie.

A row is padded to the smallest length that holds it; where it is taken along in a batch of longer rows, further.
Whether that is wise is the scheduler's to say. The model has said before (`proof`) that it changes no answer.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from lazybatch.core.graph import NodeGraph
from lazybatch.errors import InvalidInput
from lazybatch.executors.admission import signature_of
from lazybatch.executors.base import Executor, MemoryPlan, Row
from lazybatch.executors.padding.pad import Pad, trimmed
from lazybatch.executors.padding.proof import Paddable, Proof, prove, stretched
from lazybatch.partition.pieces import Partition
from lazybatch.words import counted


class Plannable(Executor, Protocol):
    """An executor that lays out memory for rows like a given one."""

    def plan(self, row: Row) -> MemoryPlan:
        """Learn what rows like this need."""

    def memory(self) -> MemoryPlan:
        """What is planned so far."""


class Whole(Paddable, Protocol):
    """A partitioned model, whatever runs it."""

    @property
    def name(self) -> str:
        """Short name."""

    @property
    def graph(self) -> NodeGraph:
        """Its nodes."""

    @property
    def fingerprint(self) -> str:
        """Identity of model and partition."""

    @property
    def threads(self) -> int | None:
        """Threads its operators share."""

    @property
    def accelerator(self) -> str | None:
        """What its nodes run on where that is not the CPU."""

    def admit(self, inputs: Any) -> Row:
        """Check and copy one row."""

    def executor(self, *, max_batch_size: int) -> Plannable:
        """A fresh executor."""

    def whole_call(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The whole model on a batch."""


class PaddedValues(NamedTuple):
    """One admitted row: its arrays at its own length, and the same as the model's executor takes them, padded."""

    own: dict[str, NDArray[Any]]
    row: Row


class PaddedModel:
    """A `Model` over another one. padded_lengths: those that are executed. proof: what trying the rule found.

    Raises `ModelError` where padding changes an answer, or the rule cannot be meant for this model.
    """

    joinable = True
    reason: str | None = None

    def __init__(self, model: Whole, pad: Pad) -> None:
        self.proof: Proof = prove(model, pad)
        self.pad = pad
        self.padded_lengths: tuple[int, ...] = tuple(pad.to)
        self._model = model
        self._sampled = self.padded_lengths[-1]
        self._free = dict.fromkeys(pad.fills, pad.axis)

    def __repr__(self) -> str:
        nodes = counted(len(self.graph), "node")
        return f"PaddedModel({self.name!r}, {nodes}, joinable, padded to {list(self.pad.to)})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def graph(self) -> NodeGraph:
        """The chain the scheduler sees, the same at every length."""
        return self._model.graph

    @property
    def partition(self) -> Partition:
        """What the model was cut into."""
        return self._model.partition

    @property
    def threads(self) -> int | None:
        """Threads its operators share."""
        return self._model.threads

    @property
    def accelerator(self) -> str | None:
        """What its nodes run on where that is not the CPU, else None."""
        return self._model.accelerator

    @property
    def fingerprint(self) -> str:
        """Identity of model, partition and padded lengths."""
        return hashlib.sha256(f"{self._model.fingerprint} padded to {tuple(self.pad.to)}".encode()).hexdigest()

    def sample_row(self, seed: int) -> dict[str, Any]:
        """One made-up row, of the longest length, or of that which `at` names."""
        return stretched(self.partition, self.pad, self._model.sample_row(seed), self._sampled)

    def at(self, length: int) -> PaddedModel:
        """The same model as one that has this length only, in its made-up rows: for measuring it there."""
        if length not in self.pad.to:
            raise InvalidInput(f"model {self.name!r} is padded to {list(self.pad.to)}, not to {length}")
        other = copy.copy(self)
        other._sampled = length
        other.padded_lengths = ()
        return other

    def admit(self, inputs: Any) -> Row:
        """Check, copy and pad one row. Its size is its own length, ``length`` what it was padded to.

        Raises `InvalidInput` naming the input, also where inputs differ in length or no padded length holds the row.
        """
        if isinstance(inputs, Mapping) and self.pad.mask is not None:
            inputs = self.pad.masked(inputs, self.partition.boundaries[self.pad.mask].dtype)
        own = self._model.admit(inputs).values
        size = self.pad.length(own)
        length = self.pad.bucket(size)
        signature = signature_of(self.partition, own, self._free)
        return Row(PaddedValues(own, self.widened(own, length)), signature, size, length=length)

    def widened(self, own: Mapping[str, NDArray[Any]], length: int) -> Row:
        """A row's arrays as the model's executor takes them, at this length."""
        return self._model.admit(self.pad.padded(own, length))

    def executor(self, *, max_batch_size: int) -> PaddedExecutor:
        """A fresh executor, with memory planned for ``max_batch_size`` rows of the longest length."""
        made = self._model.executor(max_batch_size=max_batch_size)
        longest = self.at(self.pad.to[-1])
        made.plan(longest.admit(longest.sample_row(0)).values.row)
        return PaddedExecutor(self, made)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """A whole batch of one length, as it is; see the model's own."""
        return self._model.run(feeds)

    def whole_call(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The whole model on a batch of one length, as it is."""
        return self._model.whole_call()


class PaddedExecutor:
    """An `Executor` that brings the rows of a batch to one length, and cuts answers back."""

    def __init__(self, model: PaddedModel, inner: Plannable) -> None:
        self._model = model
        self._inner = inner
        self._trim = model.proof.trim
        self._sizes: dict[int, dict[int, int]] = {}

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """See `Executor.open`. Rows of several padded lengths run at the largest of them."""
        length = max(row.length or 0 for row in rows.values())
        taken = {
            request: row.values.row if row.length == length else self._model.widened(row.values.own, length)
            for request, row in rows.items()
        }
        self._inner.open(sub_batch, taken, padded_rows)
        self._sizes[sub_batch] = {request: row.size for request, row in rows.items()}

    def run(self, sub_batch: int, node: int) -> None:
        """See `Executor.run`."""
        self._inner.run(sub_batch, node)

    def merge(self, target: int, source: int) -> None:
        """See `Executor.merge`; both are of one padded length."""
        self._inner.merge(target, source)
        self._sizes[target] |= self._sizes.pop(source)

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """See `Executor.evict`."""
        self._inner.evict(sub_batch, requests)
        for request in requests:
            self._sizes[sub_batch].pop(request, None)

    def close(self, sub_batch: int) -> dict[int, Any]:
        """See `Executor.close`: answers at the rows' own lengths."""
        results = self._inner.close(sub_batch)
        sizes = self._sizes.pop(sub_batch)
        for request, answers in results.items():
            for name, axis in self._trim.items():
                answers[name] = trimmed(answers[name], axis, sizes[request])
        return results

    def discard(self, sub_batch: int) -> None:
        """See `Executor.discard`."""
        self._sizes.pop(sub_batch, None)
        self._inner.discard(sub_batch)

    def in_step(self) -> None:
        """See `TorchExecutor.in_step`; others always are."""
        in_step = getattr(self._inner, "in_step", None)
        if in_step is not None:
            in_step()

    @property
    def runs_ahead(self) -> bool:
        """See `TorchExecutor.runs_ahead`; others never do."""
        return bool(getattr(self._inner, "runs_ahead", False))

    def memory(self) -> MemoryPlan:
        """What is planned so far, for rows of the longest length."""
        return self._inner.memory()

    def shutdown(self) -> None:
        """See `Executor.shutdown`."""
        self._sizes.clear()
        self._inner.shutdown()
