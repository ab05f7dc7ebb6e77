"""Served models: what the engine looks up of them on every node, and what cannot be served."""

from __future__ import annotations

import pytest

from lazybatch.core.lane import LaneSpec
from lazybatch.engine import ServedModel
from lazybatch.errors import InvalidInput
from tests.engine.kit import AddChain, pooled, served
from tests.engine.loop_kit import Rounds


def test_ends_of_bodies() -> None:
    """The last node of every loop's body; none of a chain, whose last node is told instead."""
    assert Rounds(5, (1, 2), (2, 4)).served().ends == {1, 3}
    assert (served(AddChain(4)).ends, served(AddChain(4)).last) == (frozenset(), 3)
    assert pooled(lambda texts: texts).last == 0


def test_loops_need_an_executor_that_knows_them() -> None:
    """Refused when the engine is put together, naming what is missing; also loops on worker threads."""
    spec = LaneSpec(Rounds(2, (0, 1)).graph)
    with pytest.raises(InvalidInput, match="'rounds' has loops, but its executor AddExecutor has no leave"):
        ServedModel(spec, AddChain().executor(max_batch_size=16))
    executor = Rounds(2, (0, 1)).executor(max_batch_size=16)
    with pytest.raises(InvalidInput, match="'rounds' has loops: its nodes cannot run on worker threads"):
        ServedModel(spec, executor, pooled=True)
    assert ServedModel(spec, executor).ends == {0}
