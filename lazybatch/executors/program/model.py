"""A program with its models, ready to be served.

Owns: `ProgramModel`: the `Model` contract for graphs with loops.
Must not know: files, how models are cut, the scheduler, sub-batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lazybatch.core.graph import Loop, Node, NodeGraph
from lazybatch.errors import ExecutionError, InvalidInput
from lazybatch.executors.base import Row
from lazybatch.executors.chain import rows_capacity
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.executors.program.admission import Admission
from lazybatch.executors.program.executor import ProgramExecutor
from lazybatch.executors.program.in_place import prove_in_place
from lazybatch.executors.program.plan import StagePlan
from lazybatch.executors.program.planner import plan_stages
from lazybatch.executors.program.rows import ProgramResult
from lazybatch.executors.program.sample import sample_inputs
from lazybatch.executors.resident import resident_bytes
from lazybatch.program import Program, Reference
from lazybatch.words import counted

__all__ = ["ProgramModel", "ProgramResult"]


class ProgramModel:
    """A `Model` of several stages, some of which loop.

    program: what the stages are. models: by stage: its model, cut into nodes.
    States that are kept in place are proved here, by running their bodies.
    Raises `ModelError`, naming the stage and the tensor, where program and models do not fit each other.
    """

    def __init__(self, program: Program, models: Mapping[str, PartitionedModel]) -> None:
        self.program = program
        self.plans, board = plan_stages(program, models)
        self._tried_bytes = 0
        self._proved: set[int] = set()
        self._prove(None)
        self._admission = Admission(program.name, self.plans, board)
        self._outputs = {name: Reference.of(text) for name, text in program.outputs.items()}
        self._graph = _graph(program.name, self.plans)

    def __repr__(self) -> str:
        nodes, stages = counted(len(self.graph), "node"), counted(len(self.plans), "stage")
        return f"ProgramModel({self.name!r}, {nodes} in {stages}, {'joinable' if self.joinable else 'not joinable'})"

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def models(self) -> dict[str, PartitionedModel]:
        """By stage: its model."""
        return {plan.name: plan.model for plan in self.plans}

    @property
    def graph(self) -> NodeGraph:
        """All stages' nodes in order, called ``stage/node`` (``stage`` where it has one), and the loops over them."""
        return self._graph

    @property
    def joinable(self) -> bool:
        """Whether rows of different requests may share a sub-batch: at every stage."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why rows cannot be joined, naming the stage; None where they can."""
        return next((plan.alone for plan in self.plans if plan.alone is not None), None)

    @property
    def fingerprint(self) -> str:
        """Identity of the program, its models and their partitions."""
        parts = [self.program.name, sorted(self.program.outputs.items())]
        for stage, plan in zip(self.program.stages, self.plans, strict=True):
            parts += [stage.name, sorted((name, repr(feed)) for name, feed in stage.feeds.items())]
            # A state that is not kept in place says what it always said: what was measured of it stays valid.
            parts.append(repr(stage.loop).replace(", in_place=False", ""))
            parts.append(plan.model.fingerprint)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def threads(self) -> int | None:
        """Threads that operators of the first stage share."""
        threads: int | None = getattr(self.plans[0].model, "threads", None)
        return threads

    @property
    def accelerator(self) -> str | None:
        """What nodes of any stage run on where that is not the CPU, else None."""
        found = {getattr(plan.model, "accelerator", None) or "" for plan in self.plans} - {""}
        return ", ".join(sorted(found)) or None

    def admit(self, inputs: Any) -> Row:
        """Check and copy one row; see `lazybatch.executors.program.admission`. Raises `InvalidInput`."""
        return self._admission.admit(inputs)

    def sample_row(self, seed: int) -> dict[str, Any]:
        """One made-up row as callers give it, of shapes that every stage takes. Raises `InvalidInput`."""
        return sample_inputs(self.program, self.plans, seed)

    def _prove(self, rows_max: int | None) -> None:
        """See `prove_in_place`. What runtimes have taken by then is noted: they keep it for the rows to come."""
        if any(plan.loop is not None and plan.loop.cycle.in_place for plan in self.plans):
            before = resident_bytes()
            for plan in self.plans:
                prove_in_place(plan, rows_max)
            self._tried_bytes += max(0, (resident_bytes() or 0) - (before or 0))

    def executor(self, *, max_batch_size: int) -> ProgramExecutor:
        """A fresh executor, with memory planned for ``max_batch_size`` rows of the shapes of `sample_row`.

        Where rows of other shapes come, memory grows with the first of them; see `ProgramExecutor.plan`. Raises
        `ModelError` for a state that cannot be kept in place by so many rows, which is tried once.
        """
        for plan in self.plans:
            rows_capacity(plan.partition, max_batch_size)
        if self.joinable and max_batch_size not in self._proved:
            self._prove(max_batch_size)
            self._proved.add(max_batch_size)
        made = ProgramExecutor(
            self.plans,
            self._outputs,
            max_batch_size=max_batch_size,
            joinable=self.joinable,
            loaded_bytes=sum(model.loaded_bytes for model in self.models.values()) + self._tried_bytes,
        )
        # A model may refuse made-up rows (an index out of range, say); then memory is laid out as real rows come.
        with suppress(InvalidInput, ExecutionError):
            made.plan(self.admit(self.sample_row(0)))
        return made


def _graph(model: str, plans: tuple[StagePlan, ...]) -> NodeGraph:
    nodes: list[Node] = []
    loops: list[Loop] = []
    for plan in plans:
        pieces = plan.partition.pieces
        first = len(nodes)
        names = [plan.name] if len(pieces) == 1 else [f"{plan.name}/{piece.name}" for piece in pieces]
        nodes += [Node(name, piece.operators) for name, piece in zip(names, pieces, strict=True)]
        if plan.loop is not None:
            loops.append(Loop(plan.name, first, len(nodes), plan.loop.same_iteration, plan.loop.most))
    return NodeGraph(model, tuple(nodes), tuple(loops))
