"""Puts a program and its models together, and checks everything that only both of them tell.

Owns: `plan_stages`.
Must not know: rows, memory, any runtime.

Every refusal is a `ModelError` that names the stage and the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ModelError
from lazybatch.executors.admission import row_dims
from lazybatch.executors.cycle import Cycle, Growth
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.executors.program.in_place import refusal
from lazybatch.executors.program.plan import Board, Dims, Given, Known, LoopPlan, StagePlan
from lazybatch.partition.pieces import Boundary, Kind
from lazybatch.program import Append, Carry, Feed, Program, Reference, Stage


def plan_stages(program: Program, models: Mapping[str, PartitionedModel]) -> tuple[tuple[StagePlan, ...], Board]:
    """Plans of all stages, in order; raises `ModelError`."""
    board = Board(program, models)
    for stage in program.stages:
        if not isinstance(models.get(stage.name), PartitionedModel):
            raise ModelError(
                f"stage {stage.name!r}: its model cannot be cut into nodes: a stage is a model file or module"
            )
        _note_uniform(board, stage)
    wanted = _wanted(program)
    plans: list[StagePlan] = []
    for stage in program.stages:
        plans.append(_Planner(board, stage, wanted.get(stage.name, [])).plan(sum(p.loop is not None for p in plans)))
    for name, text in program.outputs.items():
        if Reference.of(text) not in board.known:
            raise ModelError(
                f"output {name!r} is given {text!r}, which stage {Reference.of(text).stage!r} does not make"
            )
    return tuple(plans), board


def _note_uniform(board: Board, stage: Stage) -> None:
    """Inputs of the program that an input without batch axis is given are a part of the signature."""
    boundaries = board.models[stage.name].partition.boundaries
    for name, feed in stage.feeds.items():
        if name in boundaries and boundaries[name].kind is Kind.SHARED:
            reference = Reference.of(feed.of or feed.length_of or "")
            if reference.stage is None:
                (board.uniform if feed.of is not None else board.lengths).add(reference.tensor)


def _wanted(program: Program) -> dict[str, list[str]]:
    """By stage: its tensors that later stages or outputs name."""
    named = [reference for stage in program.stages for _, reference in stage.references()]
    named += [Reference.of(text) for text in program.outputs.values()]
    found: dict[str, list[str]] = {}
    for reference in dict.fromkeys(named):
        if reference.stage is not None:
            found.setdefault(reference.stage, []).append(reference.tensor)
    return found


class _Planner:
    """Puts one stage together with its model."""

    def __init__(self, board: Board, stage: Stage, wanted: Sequence[str]) -> None:
        self._board = board
        self._stage = stage
        self._wanted = wanted
        self._model = board.models[stage.name]
        self._partition = self._model.partition
        self._alone = None if self._partition.reason is None else f"stage {stage.name!r}: {self._partition.reason}"

    def plan(self, number: int) -> StagePlan:
        """The stage's plan; what it offers is noted. number: of loops before it."""
        stage, partition = self._stage, self._partition
        self._check_inputs()
        given = [self._given(name, feed) for name, feed in stage.feeds.items()]
        if stage.loop is None:
            for name in partition.outputs:
                boundary = partition.boundaries[name]
                differs = boundary.kind is not Kind.SHARED
                self._offer(name, Known(boundary.dtype, row_dims(boundary), differs))
            outputs = tuple(name for name in self._wanted if name in partition.outputs)
            return StagePlan(stage.name, self._model, tuple(given), None, outputs, self._alone)
        loop = self._loop(number, given)
        return StagePlan(stage.name, self._model, tuple(given), loop, (), self._alone)

    def _refuse(self, text: str) -> ModelError:
        return ModelError(f"stage {self._stage.name!r}: {text}")

    def _offer(self, name: str, known: Known) -> None:
        self._board.known[Reference(self._stage.name, name)] = known

    def _check_inputs(self) -> None:
        """Each of the model's inputs is given something, and nothing else is."""
        stage, inputs = self._stage, self._partition.inputs
        loop = stage.loop
        named = list(stage.feeds)
        if loop is not None:
            named += [*loop.states, *loop.each, *(() if loop.iteration is None else (loop.iteration,))]
        for name in named:
            if name not in inputs:
                raise self._refuse(f"its model has no input {name!r}; it has {', '.join(map(repr, inputs))}")
        for name in inputs:
            if name not in named:
                raise self._refuse(f"input {name!r} of its model is given nothing")

    def _output(self, name: str) -> Boundary:
        outputs = self._partition.outputs
        if name not in outputs:
            raise self._refuse(f"its model has no output {name!r}; it has {', '.join(map(repr, outputs))}")
        return self._partition.boundaries[name]

    def _look_up(self, what: str, reference: Reference) -> Known:
        """What is known of a tensor that is named. An input of the program may be anything its readers take."""
        if reference.stage is None:
            return Known(differs=reference.tensor not in self._board.uniform)
        known = self._board.known.get(reference)
        if known is None:
            raise self._refuse(
                f"{what} is given {str(reference)!r}, but stage {reference.stage!r} makes no such tensor"
            )
        return known

    def _given(self, name: str, feed: Feed) -> Given:
        """An input that is given once, when the row comes."""
        boundary = self._partition.boundaries[name]
        what = f"input {name!r}"
        reference = Reference.of(feed.of or feed.length_of or "")
        known = self._look_up(what, reference)
        if feed.length_of is not None:
            differs = known.ragged if reference.stage else reference.tensor not in self._board.lengths
            self._same_for_all(what, boundary, differs, f"the length of {str(reference)!r}")
            return Given(name, reference, self._number(what, boundary), length=True)
        self._same_for_all(what, boundary, known.differs, repr(str(reference)))
        self._fits(what, boundary, known, str(reference), padded=bool(feed.pad))
        self._check_pad(what, boundary, feed)
        return Given(name, reference, pad=feed.pad, largest=known.ragged)

    def _same_for_all(self, what: str, boundary: Boundary, differs: bool, given: str) -> None:
        """Rows that are given different values for an input without a batch axis are served one at a time."""
        if boundary.kind is Kind.SHARED and differs and self._alone is None:
            self._alone = f"stage {self._stage.name!r}: {what} has no batch axis, but rows differ in {given}"

    def _fits(self, what: str, boundary: Boundary, known: Known, given: str, *, padded: bool = False) -> None:
        """Types and shapes, as far as they are known."""
        if known.dtype is not None and known.dtype != boundary.dtype:
            raise self._refuse(f"{what} is {boundary.dtype}, but {given!r} is {known.dtype}")
        have, want = known.dims, row_dims(boundary)
        if padded and have is not None:
            have = (None, *have[1:])
        if not _agree(have, want):
            raise self._refuse(f"{what} has the shape {_shown(want)} per row, but {given!r} has {_shown(have)}")

    def _check_pad(self, what: str, boundary: Boundary, feed: Feed) -> None:
        """What is padded has the length that the model takes, where that is fixed."""
        length = next(iter(row_dims(boundary) or ()), None)
        other = next((size for size in feed.pad if length is not None and size != length), None)
        if other is not None:
            raise self._refuse(f"{what} takes {length} entries, but {feed.of!r} is padded to {other}")

    def _number(self, what: str, boundary: Boundary) -> NDArray[Any]:
        """An input that takes one number per row: a form of it."""
        dims = row_dims(boundary)
        dtype = np.dtype(boundary.dtype)
        if dtype.kind not in "iuf" or any(dim not in (1, None) for dim in dims or ()):
            raise self._refuse(f"{what} takes {boundary.dtype} {_shown(dims)} per row, but it is given one number")
        return np.zeros((1,) * len(dims or ()), dtype)

    # -- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, number: int, given: list[Given]) -> LoopPlan:
        repeat = self._stage.loop
        assert repeat is not None, "asked of loops only"
        boundaries = self._partition.boundaries
        forms: dict[str, NDArray[Any]] = {}
        carried: dict[str, str] = {}
        grown: dict[str, Growth] = {}
        for name, state in repeat.states.items():
            following = state.slice if isinstance(state, Append) else state.next
            if isinstance(repeat.states.get(following), Append):
                raise self._refuse(
                    f"state {name!r} is given {following!r}, which has grown by then: its body must return a copy of "
                    "it, under another name"
                )
            if isinstance(state, Append):
                forms[name] = self._grown_form(name, state)
                grown[name] = Growth(state.slice, state.axis)
            else:
                given.append(self._carried(name, state))
                carried[name] = state.next
        in_place = frozenset(name for name, one in repeat.states.items() if isinstance(one, Carry) and one.in_place)
        each = {name: Reference.of(text) for name, text in repeat.each.items()}
        for name, reference in each.items():
            self._each(name, reference)
        same_iteration = False
        if repeat.iteration is not None:
            same_iteration = boundaries[repeat.iteration].kind is Kind.SHARED
            forms[repeat.iteration] = self._number(f"input {repeat.iteration!r}", boundaries[repeat.iteration])
        if repeat.done is not None:
            self._check_done(repeat.done)
        for name in repeat.collect:
            boundary = self._output(name)
            dims = row_dims(boundary)
            self._offer(name, Known(boundary.dtype, None if dims is None else (None, *dims), True, True))
        ended_by, by_value = self._ended_by(repeat.counted, each)
        read = {*repeat.collect, *(growth.slice for growth in grown.values())} | (
            {repeat.done} if repeat.done else set()
        )
        fed = frozenset(each) | ({repeat.iteration} if repeat.iteration else frozenset())
        cycle = Cycle(carried, frozenset(fed), grown, frozenset(read), in_place)
        for name in sorted(in_place):
            why = refusal(self._partition, cycle, name)
            if why is not None:
                raise self._refuse(f"state {name!r} -> {carried[name]!r} cannot be kept in place: {why}")
        return LoopPlan(
            number,
            cycle,
            each,
            forms,
            repeat.iteration,
            same_iteration,
            repeat.done,
            ended_by,
            by_value,
            repeat.most,
            repeat.at_max,
            repeat.collect,
            tuple(name for name in self._wanted if name in repeat.states),
            tuple(name for name in self._wanted if name in repeat.collect),
        )

    def _carried(self, name: str, state: Carry) -> Given:
        """A state that the body replaces."""
        what = f"state {name!r}"
        boundary, following = self._partition.boundaries[name], self._output(state.next)
        if following.dtype != boundary.dtype:
            raise self._refuse(f"{what} is {boundary.dtype}, but {state.next!r}, its next value, is {following.dtype}")
        joinable = self._partition.joinable
        have, want = (row_dims(following), row_dims(boundary)) if joinable else (following.dims, boundary.dims)
        if not _agree(have, want) or (joinable and (boundary.kind, boundary.axis) != (following.kind, following.axis)):
            raise self._refuse(
                f"{what} is {_placed(boundary)}, but {state.next!r}, its next value, is {_placed(following)}"
            )
        self._same_for_all(what, boundary, True, "it")
        self._offer(name, Known(boundary.dtype, row_dims(boundary)))
        if isinstance(state.start, str):
            reference = Reference.of(state.start)
            known = self._look_up(f"the start of {what}", reference)
            self._fits(f"the start of {what}", boundary, known, state.start)
            return Given(name, reference)
        return Given(name, None, self._filled(what, boundary, state.start))

    def _filled(self, what: str, boundary: Boundary, number: float) -> NDArray[Any]:
        dims = row_dims(boundary)
        if dims is None or None in dims:
            raise self._refuse(
                f"{what} starts as {number}, but its model leaves its shape open, {_shown(dims)} per row: give a tensor"
            )
        dtype = np.dtype(boundary.dtype)
        filled: NDArray[Any] | None = None
        if dtype.kind in "biuf":
            with np.errstate(all="ignore"), suppress(OverflowError):
                filled = np.full([dim or 0 for dim in dims], number).astype(dtype)
        if filled is None or (
            filled.size and not (np.isfinite(filled.flat[0]) if dtype.kind == "f" else filled.flat[0] == number)
        ):
            raise self._refuse(f"{what} is {boundary.dtype} and cannot start as {number}")
        return filled

    def _grown_form(self, name: str, state: Append) -> NDArray[Any]:
        """A state that grows by a slice per iteration: a form of one row."""
        what = f"state {name!r}"
        boundary, piece = self._partition.boundaries[name], self._output(state.slice)
        if piece.dtype != boundary.dtype:
            raise self._refuse(f"{what} is {boundary.dtype}, but {state.slice!r}, its slice, is {piece.dtype}")
        if not (boundary.unit and piece.unit):
            raise self._refuse(f"{what} cannot grow: a row owns several indexes of its batch axis")
        want = row_dims(boundary)
        have = row_dims(piece) if piece.kind is not Kind.OPAQUE else None
        if have is not None and state.axis <= len(have):
            have = (*have[: state.axis], state.room, *have[state.axis :])
        if not _agree(have, want) or (want is not None and state.axis >= len(want)):
            raise self._refuse(
                f"{what} has the shape {_shown(want)} per row, but slices {state.slice!r} along axis {state.axis} with "
                f"room for {state.room} make {_shown(have)}"
            )
        dims = want if have is None else have if want is None else [a or b for a, b in zip(have, want, strict=True)]
        if dims is not None:
            dims = [state.room if axis == state.axis else dim for axis, dim in enumerate(dims)]
        if dims is None or None in dims:
            raise self._refuse(f"{what}: its model leaves its shape open, {_shown(want)} per row; it must be fixed")
        self._same_for_all(what, boundary, True, "it")
        open_axis = tuple(None if axis == state.axis else dim for axis, dim in enumerate(dims))
        self._offer(name, Known(boundary.dtype, open_axis, True, True))
        return np.broadcast_to(np.zeros((), boundary.dtype), tuple(dim or 0 for dim in dims))

    def _each(self, name: str, reference: Reference) -> None:
        """An input that is given one entry of a tensor per iteration."""
        what = f"input {name!r} of each iteration"
        boundary = self._partition.boundaries[name]
        known = self._look_up(what, reference)
        self._same_for_all(what, boundary, True, "it")
        if known.dims is not None and not known.dims:
            raise self._refuse(f"{what} is given {str(reference)!r}, which has no axis for the iterations")
        entry = None if known.dims is None else known.dims[1:]
        self._fits(what, boundary, Known(known.dtype, entry), f"{reference}[k]")

    def _check_done(self, name: str) -> None:
        boundary = self._output(name)
        dims = row_dims(boundary) if boundary.kind is Kind.ROWS else boundary.dims
        if np.dtype(boundary.dtype).kind not in "biu":
            raise self._refuse(f"done {name!r} is {boundary.dtype}; it must be bool, or an integer that is 0 or 1")
        if any(dim not in (1, None) for dim in dims or ()) or not boundary.unit:
            raise self._refuse(f"done {name!r} has the shape {_shown(dims)} per row; it must be one flag")

    def _ended_by(self, counted: Feed | None, each: Mapping[str, Reference]) -> tuple[Reference | None, bool]:
        """What says how many iterations a row makes, but for its flag; and whether by its value."""
        if counted is None:
            return next(iter(each.values()), None), False
        if counted.length_of is not None:
            self._look_up("trips", Reference.of(counted.length_of))
            return Reference.of(counted.length_of), False
        return Reference.of(counted.of or ""), True


def _agree(have: Dims, want: Dims) -> bool:
    if have is None or want is None:
        return True
    return len(have) == len(want) and all(None in (a, b) or a == b for a, b in zip(have, want, strict=True))


def _shown(dims: Sequence[int | None] | None) -> str:
    return "unknown" if dims is None else "[" + ", ".join("any" if dim is None else str(dim) for dim in dims) + "]"


def _placed(boundary: Boundary) -> str:
    where = f"with rows on axis {boundary.axis}" if boundary.kind is Kind.ROWS else f"{boundary.kind} by all rows"
    return f"{boundary.dtype} {_shown(boundary.dims)} {where}"
