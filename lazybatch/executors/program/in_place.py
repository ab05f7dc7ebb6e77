"""May a loop's body write a state over itself? Refused where the graph says no, else tried.

Owns: `refusal`, which looks at the nodes, `prove_in_place`, which has them tried, and `could_be_in_place`, which
suggests.
Must not know: any runtime, how bodies are tried, sub-batches that are served.

A state kept in place has one memory for its value and the next one. An operator that is made for that (an attention
that finds its past and present at one address) changes what must change and copies nothing; most others would read what
they have already written. No graph tells the two apart, so both are run side by side (`Trial`), and everything the loop
reads must agree bit for bit. Only bytes that are as the row brought them may differ, in states that no one is given: an
attention with a memory of its own for the next value blanks what lies behind the last position.

What was tried is rows of one shape, that of the examples, and as many together as memory allows. So a state must have a
fixed shape; other inputs may have any, which no run has shown to be right.
"""

from __future__ import annotations

from dataclasses import replace

from lazybatch.errors import ExecutionError, ModelError
from lazybatch.executors.admission import row_dims
from lazybatch.executors.cycle import Cycle, lives
from lazybatch.executors.program.plan import StagePlan
from lazybatch.executors.program.trial import ROWS_LEAST, ROWS_MANY, Trial, rows_held
from lazybatch.executors.sample import row_bytes
from lazybatch.partition.pieces import Kind, Partition

LARGE = 1 << 16
"""Bytes of a state, per row, from which on it is worth a word that it could be kept in place."""
_UNTRIED = (ExecutionError, ValueError, MemoryError)
"""What made-up rows may run into: a body refuses them, they make no batch, they do not fit."""


def refusal(partition: Partition, cycle: Cycle, name: str) -> str | None:
    """Why the nodes forbid a carried input to share memory with the output that it is next; None where they do not."""
    carried, alive = cycle.carried, lives(partition, cycle).alive
    output = carried[name]
    if partition.reason is not None:
        return f"its rows are not joined, and lie in no buffers: {partition.reason}"
    if partition.boundaries[name].kind is not Kind.ROWS:
        return "it is no row's own"
    dims = row_dims(partition.boundaries[name])
    if dims is None or None in dims:
        return "its model leaves its shape open, and what is tried with one shape need not hold for others"
    if output in partition.inputs:
        return f"{output!r}, its next value, is an input of the body"
    other = next((one for one, source in carried.items() if source == output and one != name), None)
    if other is not None:
        return f"{output!r}, its next value, is also that of {other!r}"
    made = next(k for k, piece in enumerate(partition.pieces) if output in piece.outputs)
    late = next((piece for piece in partition.pieces[made + 1 :] if name in piece.inputs), None)
    if late is not None:
        return f"node {late.name!r} reads it after node {partition.pieces[made].name!r} has made {output!r}"
    if name in alive[made + 1]:
        return f"it is read after node {partition.pieces[made].name!r} has made {output!r}"
    if name not in alive[0]:
        return "the body does not read it"
    return None


def prove_in_place(plan: StagePlan, rows_max: int | None = None) -> None:
    """Run a loop's body with and without its states in place. Raises `ModelError` naming stage and tensors.

    rows_max: only for a batch of so many rows: kernels take several rows at once, and what a few rows show might not
    hold for all. None: everything else. No more rows are tried together than `rows_held` allows, in the end one and
    two; larger batches are then served on the strength of those.
    """
    loop = plan.loop
    if loop is None or not loop.cycle.in_place:
        return
    try:
        if rows_max is not None and min(rows_max, rows_held(plan.partition)) <= ROWS_MANY:
            return
        if _kept(plan, loop.cycle) != loop.cycle.in_place:
            raise _refused(
                plan,
                "its runtime keeps every value in memory of its own (torch modules, tensors on a device, types without "
                "a buffer); leave in_place out, or let the state grow by slices (append)",
            )
        found = _difference(plan, rows_max)
        again = None if found is None else _difference(plan, rows_max, apart=True)
    except _UNTRIED as error:
        why = str(error) or type(error).__name__
        raise _refused(plan, f"that could not be tried with rows made up from its examples: {why}") from error
    if again is not None:
        raise _refused(plan, f"its answers are random: with memory of its own in both of two runs, {again}")
    if found is not None:
        why = "the body needs the former value after it has begun to write the next one"
        raise _refused(plan, f"where it is, {found}: {why}")


def could_be_in_place(plan: StagePlan) -> tuple[str, ...]:
    """Carried states that are large and would pass the proof together, if they were declared; empty where there are
    none, where it fails, and where rows are too large to be tried unasked."""
    loop = plan.loop
    if loop is None or plan.partition.reason is not None:
        return ()
    cycle, partition = loop.cycle, plan.partition
    try:
        sizes = row_bytes(partition)
        large = [name for name in cycle.carried if name not in cycle.in_place and sizes[name] >= LARGE]
        able = frozenset(name for name in large if refusal(partition, cycle, name) is None)
        if not able or rows_held(partition) < ROWS_LEAST:
            return ()
        able = _kept(plan, replace(cycle, in_place=able))
        together = replace(cycle, in_place=cycle.in_place | able)
        if not able or _difference(replace(plan, loop=replace(loop, cycle=together))) is not None:
            return ()
    except (ModelError, *_UNTRIED):
        return ()
    return tuple(sorted(able))


def _kept(plan: StagePlan, cycle: Cycle) -> frozenset[str]:
    """Of the states in place, those that the runtime has one memory for."""
    chain = plan.model.chain(max_batch_size=1, cycle=cycle)
    try:
        return frozenset(name for name in cycle.in_place if chain.store.in_place(name))
    finally:
        chain.shutdown()


def _difference(plan: StagePlan, rows_max: int | None = None, *, apart: bool = False) -> str | None:
    """See `Trial.difference`."""
    trial = Trial(plan, ROWS_MANY if rows_max is None else rows_max, apart=apart)
    try:
        return trial.difference(only_many=rows_max is not None)
    finally:
        trial.end()


def _refused(plan: StagePlan, why: str) -> ModelError:
    assert plan.loop is not None, "it is a loop"
    cycle = plan.loop.cycle
    pairs = ", ".join(f"{name!r} -> {cycle.carried[name]!r}" for name in sorted(cycle.in_place))
    return ModelError(f"stage {plan.name!r}: state {pairs} cannot be kept in place: {why}")
