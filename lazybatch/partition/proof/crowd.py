"""What three rows of ordinary numbers do not show: many rows at once, and rows that the model refuses alone.

Owns: the probe of a crowd (a number computed from the rows may begin to matter only at nine of them), and the probe of
whole numbers outside what the model accepts (an index one too large is an error alone, and another row in company).
Must not know: operators; cuts; files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.ports import Port, one_line
from lazybatch.partition.proof.probe import Runner
from lazybatch.partition.proof.rows import Array, Candidate, Feeds, Recipe, join, make_rows, named_dims
from lazybatch.partition.proof.traits import Outcome, Trait, close, difference, same

CROWDS = ((1 << 20, 33), (4 << 20, 17))
"""Bytes of one row's inputs and of what its run returns up to which so many rows are tried; one more than the usual
batch sizes."""
CROWD_OF_LARGE_ROWS = 9
SIZE_TRIED_MAX = 1 << 16
"""Larger dimensions are no likely bounds of an index."""


def crowded(
    ports: Sequence[Port],
    candidate: Candidate,
    recipe: Recipe,
    run: Runner,
    outputs: Mapping[str, Trait],
    tolerance: float | None,
) -> str | None:
    """Why many rows at once do not each get what they get alone; None where they do."""
    shared, rows = make_rows(ports, candidate, recipe, 3, 0, even=tolerance is not None)
    try:
        alone = [run(join(shared, [row], candidate)) for row in rows]
        nbytes = sum(value.nbytes for value in (*rows[0].values(), *alone[0].values()))
        count = next((count for limit, count in CROWDS if nbytes <= limit), CROWD_OF_LARGE_ROWS)
        got = run(join(shared, [rows[k % 3] for k in range(count)], candidate))
    except Exception as error:
        return f"many rows together fail where each alone works: {one_line(error)}"
    wanted = [alone[k % 3] for k in range(count)]
    found = _differs(got, wanted, outputs, tolerance)
    return None if found is None else f"{found} when {count} rows share its batch"


def strays(
    ports: Sequence[Port],
    candidate: Candidate,
    recipe: Recipe,
    run: Runner,
    outputs: Mapping[str, Trait],
    tolerance: float | None,
) -> str | None:
    """Why a row whose numbers are out of bounds is not treated alike alone and in company; None where it is.

    Worth trying where a model picks rows' values by rows' values: nothing else can reach over to another row.
    """
    shared, rows = make_rows(ports, candidate, recipe, 3, 0)
    usual = [_attempt(run, join(shared, [row], candidate)) for row in rows]
    for name, number, row in _out_of_bounds(ports, candidate, recipe, rows[0]):
        alone = _attempt(run, join(shared, [row], candidate))
        for at in (0, 2):
            company = [row if k == at else other for k, other in enumerate(rows)]
            got = _attempt(run, join(shared, company, candidate))
            if got is None:
                continue
            if alone is None:
                return f"a row that fails alone (input {name!r} at {number}) gets an answer from other rows' values"
            wanted = [alone if k == at else one for k, one in enumerate(usual)]
            found = _differs(got, [one for one in wanted if one is not None], outputs, tolerance)
            if found is not None:
                return f"{found} when other rows share its batch and input {name!r} is {number}"
    return None


def _out_of_bounds(
    ports: Sequence[Port], candidate: Candidate, recipe: Recipe, row: Feeds
) -> Iterator[tuple[str, int, Feeds]]:
    """The row with one whole-number input at a bound that an index could have, or below 0."""
    dims = [recipe.sizes[d] if isinstance(d, str) else d for port in ports for d in named_dims(port)]
    bounds = sorted({size + more for size in dims if 0 < size <= SIZE_TRIED_MAX for more in (0, 1)})
    for port in ports:
        if port.name not in candidate or not port.dtype.startswith(("int", "uint")):
            continue
        limits = np.iinfo(port.dtype)
        for number in (-1, -2, *bounds):
            if limits.min <= number <= limits.max:
                yield port.name, number, {**row, port.name: np.full_like(row[port.name], number)}


def _attempt(run: Runner, feeds: Feeds) -> Outcome | None:
    try:
        return run(feeds)
    except Exception:
        return None


def _differs(
    got: Outcome, wanted: Sequence[Outcome], outputs: Mapping[str, Trait], tolerance: float | None
) -> str | None:
    """The first output in which a row is not what it is alone."""
    count = len(wanted)
    for name, trait in outputs.items():
        if trait.kind is Kind.SHARED and not same(got[name], wanted[0][name]):
            return f"output {name!r}: its value changes"
        if trait.kind is not Kind.ROWS or trait.axis is None:
            continue
        if got[name].ndim <= trait.axis or got[name].shape[trait.axis] % count:
            return f"output {name!r}: its rows cannot be told apart"
        parts: list[Array] = np.split(got[name], count, axis=trait.axis)
        for part, one in zip(parts, wanted, strict=True):
            if part.shape != one[name].shape or not close(part, one[name], trait.dtype, tolerance):
                return f"output {name!r}: a row changes by up to {difference(part, one[name]):.3g}"
    return None
