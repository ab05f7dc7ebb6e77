"""Forms: shapes as functions of rows, learned from real tensors and checked."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.errors import ExecutionError
from lazybatch.executors.ort.layout import Form, Layout
from lazybatch.executors.ort.slots import assign_slots
from tests.executors.partitions import residual, rows, shared, size


def test_one_observation_gives_every_number_of_rows() -> None:
    """Seen at 3 rows, known at any: on the first axis, on another, with several indices per row, without rows."""
    assert Form.of(rows("a", 4), (3, 4), 3).shape(7) == (7, 4)
    assert Form.of(rows("a", 2, 4, axis=1), (2, 3, 4), 3).shape(1) == (2, 1, 4)
    several = Form.of(rows("a", 4, unit=False), (6, 4), 3)
    assert several.shape(5) == (10, 4)
    assert several.unit_bytes == 2 * 4 * 4
    assert several.nbytes(5) == 5 * several.unit_bytes
    alike = Form.of(shared("s", 5), (5,), 3)
    assert alike.shape(9) == (5,)
    assert alike.nbytes(9) == 20
    assert Form.of(size("n", True, False), (2,), 3).dtype == np.int64


@pytest.mark.parametrize("shape", [(4, 2), (2, 2), ()])
def test_a_shape_against_the_claim_is_refused(shape: tuple[int, ...]) -> None:
    """A tensor whose axis does not hold its three rows raises and names tensor, axis and shape."""
    with pytest.raises(ExecutionError, match=r"'a'.* axis 0.* 3 .*shape"):
        Form.of(rows("a", 2), shape, 3)
    with pytest.raises(ExecutionError, match="'b'"):
        Form.of(rows("b", 2, unit=False), (4, 2), 3)


def test_a_layout_says_what_each_slot_must_hold(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Slot sizes are those of the largest tensor ever in them, at the planned number of rows."""
    net = residual(tmp_path_factory.mktemp("net"))
    plan = assign_slots(net, net.boundaries)
    layout = Layout(0, "signature", net.boundaries, plan, capacity=8)
    assert not layout.knows(["x"])
    layout.learn("x", (1, 3, 5), 1)
    layout.learn("a", (2, 3, 5), 2)
    assert layout.knows(["x", "a"])
    assert layout.slot_bytes[plan.slot_of["x"]] == 8 * 3 * 5 * 4
    layout.learn("y", (2, 5), 2)
    assert layout.slot_bytes[plan.slot_of["x"]] == 8 * 3 * 5 * 4
