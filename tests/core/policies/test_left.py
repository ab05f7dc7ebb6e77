"""Left: who of those that wait ends late, against following every batch; and what need not be looked at for that.

A model has 2 nodes that take 45 + 5 b ns each, at most 4 rows: 100 alone, 130 for four.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lazybatch.core.control import Control
from lazybatch.core.infq import InfQ
from lazybatch.core.lane import Lane
from lazybatch.core.policies.left import DEADLINES_SEEN, QUEUE_SEEN, Left
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.solver import solve
from tests.core.kit import lane_spec, linear, row


@cache
def control() -> Control:
    """The solved control of the module's table."""
    return solve(linear("m", 2, 45, 5, 4), 4)


def seen(slas: list[int | None], *, gap_ns: int = 1, load: int = 10, signature: str = "x", timed: bool = True) -> Left:
    """A lane in which rows of these targets wait, of which the last has just come."""
    lane = Lane(lane_spec(linear("m", 2, 45, 5, 4), max_batch_size=4))
    for k, sla in enumerate(slas):
        lane.queue.push(row(k, gap_ns * k, sla=sla, signature=signature[k % len(signature)]))
    left = Left(lane, control().solutions[0])
    left.see(control().solutions[load], 1.0, gap_ns * len(slas), timed)
    if left.late_alone:
        left.lose(150.0)
    return left


def followed(left: Left, begun: int, free_ns: int, passing: bool) -> int:
    """Rows that end late, batch after batch, the lost before the others unless they let them pass."""
    lane = left.lane
    rows: list[Request] = list(lane.queue)[: left.lost + DEADLINES_SEEN]
    rows = rows[: QUEUE_SEEN * lane.rows_max]
    lost, others = rows[: left.lost], rows[left.lost : left.lost + DEADLINES_SEEN]
    if passing:
        others = others[begun:]
    else:
        lost, others = lost[begun:], others[max(0, begun - len(lost)) :]
    if not others:
        return 0
    waiting = others if free_ns <= left.pass_until_ns else [*lost, *others]
    late = 0
    while waiting:
        size = min(left.solution.start(len(waiting)) or len(waiting), lane.rows_max)
        free_ns += lane.run_ns(size)
        late += sum(request in others and request.deadline_ns < free_ns for request in waiting[:size])
        waiting = waiting[size:]
    return late


TARGETS = st.lists(st.one_of(st.none(), st.integers(1, 900)), min_size=1, max_size=14)


@settings(max_examples=200, deadline=None)
@given(TARGETS, st.integers(0, 40), st.integers(0, 18), st.integers(0, 14), st.integers(0, 500), st.booleans())
@example([1, None, 1], 0, 0, 0, 0, False)
def test_who_is_late_is_who_ends_late(
    slas: list[int | None], gap_ns: int, load: int, begun: int, after_ns: int, passing: bool
) -> None:
    """Whatever waits, starts and runs: as many as when every batch is followed. Where nobody can be late, none is; and
    nobody of those who start either."""
    left = seen(slas, gap_ns=gap_ns, load=load)
    begun = min(begun, max(0, left.rows - left.lost if passing else left.rows))
    free_ns = gap_ns * len(slas) + after_ns
    if free_ns <= left.calm_until_ns:
        assert left.late(begun, free_ns) == 0
        assert all(deadline_ns >= free_ns for deadline_ns in left.deadlines_ns[:begun])
    assert left.late(begun, free_ns, passing=passing) == followed(left, begun, free_ns, passing)


def test_deadlines_are_read_only_where_one_could_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head came at 0 and the tightest target is 500: up to then nobody is looked at, and then everybody once."""
    left, peek, asked = seen([500, 600, 700]), InfQ.peek, list[int]()
    monkeypatch.setattr(InfQ, "peek", lambda queue, now, rows: asked.append(rows) or peek(queue, now, rows))
    run_ns = left.lane.run_ns(3)
    assert left.late(0, 500 - run_ns) == 0
    assert left.calm_until_ns == 500 - run_ns
    assert not asked
    assert [left.late(0, free_ns) for free_ns in (501 - run_ns, 701 - run_ns)] == [1, 2]
    assert asked == [3]


def test_where_targets_differ_the_bound_is_replaced_by_what_is_found() -> None:
    """The tight target of a row that came late makes somebody look; then the earliest deadline itself is known."""
    left = seen([900, 400], gap_ns=300)
    assert left.tightest_ns == 400
    assert left.late(0, 600 - left.lane.run_ns(2)) == 0
    assert left.tightest_ns == 700


@pytest.mark.parametrize("timed", [True, False])
def test_without_rows_or_deadlines_everybody_is_in_time(timed: bool) -> None:
    """An empty queue, and a model whose rows have no targets."""
    left = seen([] if timed else [5, 5], timed=timed)
    assert (left.seen, left.deadlines_ns) == (0, ())
    assert left.calm_until_ns >= UNBOUNDED_NS


def test_in_a_mixed_queue_those_of_the_heads_signature_are_looked_at() -> None:
    """Two of four; whoever is late alone is not taken for lost there."""
    left = seen([5, 6, 700, 800], signature="xy")
    assert (left.lost, left.seen, left.deadlines_ns, left.tightest_ns) == (0, 2, [5, 702], 5)


def test_behind_the_lost_somebody_always_looks() -> None:
    """Whoever is in time behind rows that are not may have to wait for them; with nobody left, nobody can be late."""
    assert seen([1, None, 1], gap_ns=0).calm_until_ns < 0
    assert seen([1, 1], gap_ns=0).calm_until_ns >= UNBOUNDED_NS


def test_what_has_not_changed_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For time or another share alone; but for another solution, a row more, a head that can no longer be in time."""
    left, looked = seen([500] * 8), list[int]()
    low, high = control().solutions[0], control().solutions[-1]
    look = Left._look
    monkeypatch.setattr(Left, "_look", lambda self, *how: looked.append(how[1]) or look(self, *how))
    for solution, share, now in ((low, 1.0, 8), (low, 0.5, 9), (low, 0.5, 400), (high, 0.5, 400), (high, 1.0, 401)):
        left.see(solution, share, now, True)
    assert looked == [8, 400, 401]
    assert left.late_alone
    left.lane.queue.push(row(99, 401, sla=500))
    left.see(high, 1.0, 401, True)
    assert (looked, left.rows) == ([8, 400, 401, 401], 9)


def test_a_solution_keeps_what_was_added_up_for_it() -> None:
    """Rates come and go; how long so many rows take is the same again."""
    left, calm = seen([500] * 8), []
    low, high = control().solutions[0], control().solutions[-1]
    for solution in (low, high, low):
        left.see(solution, 1.0, 8, True)
        calm.append(left.calm_until_ns)
    assert calm[0] == calm[2] == 500 - 2 * left.lane.run_ns(4)
