"""What rows that come to a stage are given: blocks as they are, lengths, padding, and shapes that must agree."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from lazybatch.errors import ExecutionError
from lazybatch.executors.columns import Column
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.program.given import columns_for, signature_of
from lazybatch.executors.program.plan import Given, LoopPlan, StagePlan
from lazybatch.executors.program.rows import Traveller
from lazybatch.program import Reference

SOURCE, KEYS = Reference(None, "source"), Reference("reader", "keys")


def stage(*given: Given, loop: LoopPlan | None = None) -> StagePlan:
    """A stage whose model does not matter."""
    return StagePlan("s", cast(Any, None), given, loop)


def travellers(*lengths: int) -> list[Traveller]:
    """Rows with a source of these lengths."""
    return [Traveller({"source": np.arange(1, length + 1)}, 1) for length in lengths]


def shown(column: Column) -> list[object]:
    """One entry per row."""
    assert column.rows is not None
    return [np.asarray(row).tolist() for row in column.rows]


def test_a_block_is_given_as_it_is() -> None:
    """What rows bring together is not taken apart; what they have alone is, and numbers for all are given once."""
    block = np.ones((2, 3, 4))
    plan = stage(Given("k", KEYS), Given("x", SOURCE), Given("one", None, np.array(1)))
    columns = columns_for(plan, travellers(2, 2), {KEYS: block})
    assert columns["k"].rows is block
    assert shown(columns["x"]) == [[1, 2], [1, 2]]
    assert columns["one"].rows is None
    assert signature_of("s", columns) == ((3, 4), (2,), ())


def test_what_rows_share_is_known_by_its_value() -> None:
    """Rows that share another value are of another signature, at equal shapes."""
    one, same, other = ({"k": Column.of([np.array([k])]), "x": Column.of([np.zeros(2)])} for k in (3, 3, 5))
    assert signature_of("s", one) == signature_of("s", other)
    assert signature_of("s", one, ("k",)) == signature_of("s", same, ("k",)) != signature_of("s", other, ("k",))


def test_a_tensor_that_is_given_whole_and_by_its_length() -> None:
    """The block is for the input that takes it as it is; the other gets the length of each row's own."""
    block = np.ones((2, 3, 4))
    rows = travellers(2, 2)
    for row, keys in zip(rows, block, strict=True):
        row.tensors[KEYS] = keys
    given = Given("k", KEYS), Given("n", KEYS, np.zeros((), np.int64), length=True)
    columns = columns_for(stage(*given), rows, {KEYS: block})
    assert columns["k"].rows is block
    assert shown(columns["n"]) == [3, 3]


def test_lengths_and_padding() -> None:
    """Each row's own length, in the input's type and shape; zeros behind what is padded."""
    number = np.zeros((), np.int32)
    plan = stage(
        Given("n", SOURCE, number, length=True),
        Given("m", SOURCE, np.zeros(1, np.int64), length=True),
        Given("x", SOURCE, pad=(4,)),
    )
    columns = columns_for(plan, travellers(2, 3))
    lengths = columns["n"].rows
    assert isinstance(lengths, np.ndarray)
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [2, 3]
    assert shown(columns["m"]) == [[2], [3]]
    assert shown(columns["x"]) == [[1, 2, 0, 0], [1, 2, 3, 0]]
    with pytest.raises(ExecutionError, match=r"stage 's': input 'n': 'source' has no length"):
        columns_for(plan, [Traveller({"source": np.array(1)}, 1)])


def test_rows_that_do_not_agree_are_refused() -> None:
    """Padded to different sizes, or of different shapes: the error names stage and input."""
    columns = columns_for(stage(Given("x", SOURCE, pad=(2, 4))), travellers(2, 3))
    with pytest.raises(ExecutionError, match=r"stage 's': input 'x' has the shapes \[2\] and \[4\]"):
        signature_of("s", columns)
    columns = columns_for(stage(Given("x", SOURCE)), travellers(2, 3))
    with pytest.raises(ExecutionError, match=r"\[2\] and \[3\] for rows of one signature"):
        signature_of("s", columns)


def test_loops_are_given_forms_and_first_entries() -> None:
    """Nothing is written yet: one row's shape is enough, that of an entry where it is given one per iteration."""
    loop = LoopPlan(
        0,
        Cycle(),
        {"x": SOURCE},
        {"x": np.zeros(()), "p": np.zeros(2)},
        "p",
        False,
        None,
        SOURCE,
        False,
        None,
        "truncate",
        (),
    )
    columns = columns_for(stage(loop=loop), travellers(2, 3))
    assert shown(columns["x"]) == [1, 1]
    assert columns["p"].rows is None
    assert stage(Given("k", KEYS), Given("n", SOURCE, length=True), loop=loop).taken == (
        frozenset({KEYS}),
        frozenset({SOURCE}),
    )
    with pytest.raises(ExecutionError, match=r"input 'x' of each iteration: 'source' has no entries"):
        columns_for(stage(loop=loop), travellers(0))
