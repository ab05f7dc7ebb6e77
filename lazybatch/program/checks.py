"""What is wrong with a program, as far as that can be told without its models.

Owns: `check_stage`, `check_program`, and which of a row's tensors differ in length from row to row.
Must not know: files, models.

Every refusal is an `InvalidInput` that names the stage and the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lazybatch.errors import InvalidInput
from lazybatch.program.parts import COUNT_MAX, Append, Carry, Feed, Reference, Repeat

if TYPE_CHECKING:
    from lazybatch.program.spec import Program, Stage

ENDINGS = ("truncate", "error")


def check_stage(stage: Stage) -> None:
    """Refuse a stage that contradicts itself. Raises `InvalidInput`."""
    name = stage.name
    if not isinstance(name, str) or not name or set(name) & set("./"):
        raise InvalidInput(f"a stage is named by a non-empty string without dots and slashes, got {name!r}")
    where = f"stage {name!r}"
    if stage.model is None:
        raise InvalidInput(f"{where}: it has no model")
    _mapping(where, "inputs", stage.inputs)
    for tensor, feed in stage.feeds.items():
        _check_feed(f"{where}: input {tensor!r}", feed)
    if stage.loop is not None:
        if not isinstance(stage.loop, Repeat):
            raise InvalidInput(f"{where}: loop must be a Repeat, got {stage.loop!r}")
        _check_loop(where, stage.loop)
        _check_once(where, stage)


def _mapping(where: str, what: str, given: object) -> None:
    """Names to things; the things are looked at by whoever knows them."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise InvalidInput(f"{where}: {what} must map names of tensors, got {given!r:.80}")


def _text(where: str, what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{where}: {what} must be the name of a tensor, got {value!r}")


def _count(where: str, what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{where}: {what} must be a whole number, at least {least}, got {value!r}")
    if value > COUNT_MAX:
        raise InvalidInput(f"{where}: {what} must be at most {COUNT_MAX}, got a number of {value.bit_length()} bits")


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float holds
        return False


def _check_feed(where: str, feed: object) -> None:
    if not isinstance(feed, Feed):
        raise InvalidInput(f"{where} must be given a Feed or a reference, got {feed!r:.80}")
    if (feed.of is None) == (feed.length_of is None):
        raise InvalidInput(f"{where} must be given either a tensor (of) or the length of one (length_of), got {feed!r}")
    _text(where, "of" if feed.length_of is None else "length_of", feed.of if feed.length_of is None else feed.length_of)
    if not isinstance(feed.pad, tuple | list):
        raise InvalidInput(f"{where}: pad must be sizes, a tuple of whole numbers, got {feed.pad!r:.80}")
    if feed.pad and feed.of is None:
        raise InvalidInput(f"{where}: a length is a number; only tensors are padded")
    for size in feed.pad:
        _count(where, "pad", size, 1)
    if any(b <= a for a, b in pairwise(feed.pad)):
        raise InvalidInput(f"{where}: the sizes to pad to must increase, got {list(feed.pad)}")


def _check_loop(where: str, loop: Repeat) -> None:
    _mapping(where, "carry", loop.carry)
    _mapping(where, "each", loop.each)
    for tensor, state in loop.states.items():
        _check_state(f"{where}: state {tensor!r}", state)
    for tensor, text in loop.each.items():
        _text(where, f"each of {tensor!r}", text)
    for what, value in (("iteration", loop.iteration), ("done", loop.done)):
        if value is not None:
            _text(where, what, value)
    if not isinstance(loop.collect, tuple):
        raise InvalidInput(f"{where}: collect must be names of tensors, got {loop.collect!r:.80}")
    for tensor in loop.collect:
        _text(where, "collect", tensor)
    _distinct(where, "collect", loop.collect)
    for tensor in loop.collect:
        if tensor in loop.carry:
            raise InvalidInput(
                f"{where}: {tensor!r} is both a state and collected; what comes later could not tell them apart"
            )
    _check_end(where, loop)


def _check_state(where: str, state: object) -> None:
    if isinstance(state, Append):
        _text(where, "append", state.slice)
        _count(where, "axis", state.axis, 0)
        _count(where, "room", state.room, 1)
    elif isinstance(state, Carry):
        _text(where, "next", state.next)
        start = state.start
        if isinstance(start, str):
            _text(where, "start", start)
        elif isinstance(start, bool) or not isinstance(start, int | float) or not _finite(start):
            raise InvalidInput(f"{where}: start must be a reference or a finite number, got {start!r:.80}")
        if not isinstance(state.in_place, bool):
            raise InvalidInput(f"{where}: in_place must be True or False, got {state.in_place!r:.80}")
    else:
        raise InvalidInput(f"{where} must be a Carry, an Append or the name of an output, got {state!r:.80}")


def _check_end(where: str, loop: Repeat) -> None:
    """Every loop ends, in one way that is told."""
    if not isinstance(loop.at_max, str) or loop.at_max not in ENDINGS:
        raise InvalidInput(f"{where}: at_max must be 'truncate' or 'error', got {loop.at_max!r}")
    if loop.trips_max is not None:
        _count(where, "trips_max", loop.trips_max, 1)
    if loop.trips is not None:
        counted = loop.counted
        _check_feed(f"{where}: trips", counted)
        assert counted is not None, "trips are given"
        if loop.done is not None:
            raise InvalidInput(
                f"{where}: a loop ends by its output {loop.done!r} (done) or after a known number of iterations "
                "(trips); give one of them"
            )
        if counted.pad or (counted.of is not None and Reference.of(counted.of).stage is not None):
            raise InvalidInput(
                f"{where}: trips must be the length of a tensor (length_of), or an input of the program that holds one "
                f"integer, got {loop.trips!r}"
            )
    elif loop.done is None and not loop.each:
        raise InvalidInput(f"{where}: nothing ends this loop: it needs done, trips or each")
    elif loop.done is not None and loop.trips_max is None and not loop.each:
        raise InvalidInput(
            f"{where}: done ({loop.done!r}) may never come true: give trips_max, the most iterations of any row"
        )
    for tensor, state in loop.states.items():
        if isinstance(state, Append) and loop.trips_max is not None and state.room < loop.trips_max:
            raise InvalidInput(
                f"{where}: state {tensor!r} has room for {state.room} iterations, a row may make {loop.trips_max}"
            )


def _check_once(where: str, stage: Stage) -> None:
    """Each input of the body is given one thing."""
    loop = stage.loop
    assert loop is not None, "asked of loops only"
    given = [*stage.inputs, *loop.carry, *loop.each, *(() if loop.iteration is None else (loop.iteration,))]
    _distinct(where, "input", given)


def _distinct(where: str, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"{where}: {what} {name!r} is given twice")
        seen.add(name)


def check_program(program: Program) -> None:
    """Refuse a program whose parts do not fit each other. Raises `InvalidInput`."""
    if not isinstance(program.name, str) or not program.name:
        raise InvalidInput(f"a program is named by a non-empty string, got {program.name!r}")
    if not program.stages:
        raise InvalidInput(f"program {program.name!r}: it has no stages")
    _distinct(f"program {program.name!r}", "stage", (stage.name for stage in program.stages))
    offered: dict[str, frozenset[str] | None] = {}
    for stage in program.stages:
        for what, reference in stage.references():
            _check_reference(program, offered, f"stage {stage.name!r}: {what}", reference)
        offered[stage.name] = stage.offers()
    if not isinstance(program.outputs, Mapping) or not program.outputs:
        raise InvalidInput(f"program {program.name!r}: it has no outputs")
    for name, text in program.outputs.items():
        _text(f"program {program.name!r}", f"output {name!r}", text)
        reference = Reference.of(text)
        if reference.stage is None:
            raise InvalidInput(f"output {name!r} must be a tensor of a stage (stage.tensor), got {text!r}")
        _check_reference(program, offered, f"output {name!r}", reference)
    _check_lengths(program)


def _check_reference(
    program: Program, offered: Mapping[str, frozenset[str] | None], where: str, reference: Reference
) -> None:
    """``offered``: tensors of the stages before; None where the model tells."""
    if not reference.tensor:
        raise InvalidInput(f"{where} is given {str(reference)!r}, which names no tensor")
    if reference.stage is None:
        return
    if reference.stage not in offered:
        later = reference.stage in [stage.name for stage in program.stages]
        why = "that stage runs later or is this one" if later else "there is no such stage"
        raise InvalidInput(
            f"{where} is given {str(reference)!r}, but {why}; before it come "
            f"{', '.join(map(repr, offered)) or 'only inputs of the program'}"
        )
    tensors = offered[reference.stage]
    if tensors is not None and reference.tensor not in tensors:
        raise InvalidInput(
            f"{where} is given {str(reference)!r}, but loop {reference.stage!r} neither collects nor carries "
            f"{reference.tensor!r}; it has {', '.join(map(repr, sorted(tensors))) or 'nothing'}"
        )


def varying(program: Program) -> dict[Reference, str]:
    """Tensors whose size differs among rows that join, and why; they may be used where lengths need not be equal.

    These are inputs of the program that are taken apart by iterations or padded, what loops collect, and states that
    grow.
    """
    found: dict[Reference, str] = {}
    for stage in program.stages:
        where = f"stage {stage.name!r}"
        for tensor, feed in stage.feeds.items():
            if feed.of is not None and feed.pad:
                found.setdefault(Reference.of(feed.of), f"{where} pads it for its input {tensor!r}")
        if stage.loop is None:
            continue
        for tensor, text in stage.loop.each.items():
            if Reference.of(text).stage is None:
                found.setdefault(Reference.of(text), f"{where} takes it apart by iterations for its input {tensor!r}")
        for tensor in stage.loop.collect:
            found[Reference(stage.name, tensor)] = f"{where} collects one entry per iteration"
        for tensor, state in stage.loop.states.items():
            if isinstance(state, Append):
                found[Reference(stage.name, tensor)] = f"{where} appends to it in every iteration"
    return found


def _check_lengths(program: Program) -> None:
    """Rows that join need equal shapes: what differs in length from row to row must be padded where it is used."""
    why = varying(program)
    for stage in program.stages:
        plain: list[tuple[str, Any]] = [
            (f"input {tensor!r}", feed.of) for tensor, feed in stage.feeds.items() if feed.of and not feed.pad
        ]
        states = () if stage.loop is None else stage.loop.states.items()
        plain += [
            (f"the start of state {tensor!r}", state.start)
            for tensor, state in states
            if isinstance(state, Carry) and isinstance(state.start, str)
        ]
        for what, text in plain:
            reason = why.get(Reference.of(text))
            if reason is not None:
                raise InvalidInput(
                    f"stage {stage.name!r}: {what} is given {text!r} as it is, but its length differs from row to row: "
                    f"{reason}; give it with pad"
                )
        for tensor, feed in stage.feeds.items():
            _check_padded(program, stage.name, tensor, feed)


def _check_padded(program: Program, name: str, tensor: str, feed: Feed) -> None:
    """Padding is for the first axis; a state that grows on another one cannot be padded."""
    reference = Reference.of(feed.of or "")
    if not feed.pad or reference.stage is None:
        return
    loop = program.stage(reference.stage).loop
    state = None if loop is None else loop.states.get(reference.tensor)
    if isinstance(state, Append) and state.axis:
        raise InvalidInput(
            f"stage {name!r}: input {tensor!r} pads {feed.of!r}, which grows on axis {state.axis}, not on 0"
        )
