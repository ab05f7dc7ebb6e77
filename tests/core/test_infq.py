"""The inference queue: order, groups, capacity, timeouts, retried rows; and a reference model of all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lazybatch.core.infq import Alone, InfQ, PriorityLevel
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.errors import InvalidInput, InvariantError, Overloaded
from tests.core.conftest import Core
from tests.core.kit import row


def ids(requests: list[Request]) -> list[int]:
    """Their ids, in order."""
    return [request.id for request in requests]


def test_first_in_first_out_within_one_signature(core: Core) -> None:
    """Without priorities rows leave in order of arrival, as many as asked for."""
    queue = core.queue()
    for id in range(5):
        queue.push(row(id, at=id))
    assert ids(queue.peek(10, 2)) == [0, 1]
    assert ids(queue.take(10, 3)) == [0, 1, 2]
    assert ids(queue.take(10, 9)) == [3, 4]
    assert queue.take(10, 9) == []
    assert len(queue) == 0


def test_the_first_row_selects_the_signature(core: Core) -> None:
    """Rows are taken of the oldest row's signature only; the others keep their places."""
    queue = core.queue()
    for id, signature in enumerate("xyxyx"):
        queue.push(row(id, at=id, signature=signature))
    assert ids(queue.take(9, 9)) == [0, 2, 4]
    assert ids(queue.take(9, 9)) == [1, 3]


def test_a_queue_is_uniform_while_all_its_rows_could_go_together(core: Core) -> None:
    """One level and one signature; an empty queue is not."""
    queue = core.queue()
    assert not queue.uniform
    for id, signature in enumerate("xxy"):
        queue.push(row(id, at=id, signature=signature))
        assert queue.uniform is (signature == "x")


def test_no_deadline_is_closer_to_its_arrival_than_the_queue_says(core: Core) -> None:
    """The least target of all rows since the queue was last empty: a tight one is forgotten once it is gone."""
    queue = core.queue()
    for id, sla, least in ((0, 70, 70), (1, 30, 30), (2, None, 30), (3, 50, 30)):
        queue.push(row(id, at=10 * id, sla=sla))
        assert queue.least_sla_ns == least
        queue.validate()
    queue.take(100, 9)
    queue.push(row(4, at=100, sla=90))
    assert queue.least_sla_ns == 90


def test_an_empty_queue_has_no_head(core: Core) -> None:
    """Nothing waits: no head, no urgency, no window, no timeout."""
    queue = core.queue()
    assert queue.head(0) is None
    assert queue.urgency(0) is None
    assert queue.oldest_arrival_ns(0) is None
    assert queue.next_timeout_ns() is None
    assert queue.peek(0, 5) == []


def test_higher_priority_first_then_arrival_then_id(core: Core) -> None:
    """The order over groups is level, arrival, id, whatever the order of insertion."""
    queue = core.queue()
    queue.push(row(5, at=0, signature="a"))
    queue.push(row(4, at=0, signature="b"))
    queue.push(row(6, at=1, signature="c", priority=1))
    assert [ids(queue.take(2, 1)) for _ in range(3)] == [[6], [4], [5]]


def test_ageing_raises_what_waits(core: Core) -> None:
    """With one level per 10 ns, a row that waited 20 beats a fresh one of priority 1; without ageing it does not."""
    for ageing_ns, first in ((10, 0), (None, 1)):
        queue = core.queue(ageing_ns=ageing_ns)
        queue.push(row(0, at=0))
        queue.push(row(1, at=20, priority=1))
        head = queue.head(20)
        assert head is not None
        assert head.id == first


def test_rows_of_several_levels_are_taken_by_effective_level(core: Core) -> None:
    """A young row of a low level does not slip past a more urgent mate because its group's first row is old."""
    queue = core.queue(ageing_ns=10)
    queue.push(row(0, at=0, priority=0))
    queue.push(row(1, at=95, priority=1))
    queue.push(row(2, at=100, priority=0))
    assert ids(queue.take(100, 2)) == [0, 1]


def test_an_arrival_in_the_future_has_not_aged(core: Core) -> None:
    """A clock that reads earlier than a row's arrival (another thread stamped it) never lowers its level."""
    queue = core.queue(ageing_ns=10)
    queue.push(row(0, at=100))
    assert queue.urgency(0) == (0, 100, 0)


def test_no_starvation_with_ageing(core: Core) -> None:
    """Under an endless stream of priority 3, a row of priority 0 is served within (3 + 1) ageing steps."""
    queue = core.queue(ageing_ns=10)
    queue.push(row(0, at=0, signature="old"))
    for now in range(1, 100):
        queue.push(row(now, at=now, priority=3))
        if ids(queue.take(now, 1)) == [0]:
            assert now <= 40
            return
    pytest.fail("starved")


def test_size_budget_takes_the_first_always_and_stops_before_it_overflows(core: Core) -> None:
    """Sizes 7, 2, 2, 1 under a budget of 9 give 7 + 2; one row larger than the budget still goes, alone."""
    queue = core.queue()
    for id, size in enumerate((7, 2, 2, 1, 30, 1)):
        queue.push(row(id, at=id, size=size))
    assert ids(queue.take(9, 9, size_budget=9)) == [0, 1]
    assert ids(queue.take(9, 9, size_budget=9)) == [2, 3]
    assert ids(queue.take(9, 9, size_budget=9)) == [4]


def test_rows_passed_over_keep_their_places(core: Core) -> None:
    """Past the first two of five come the next two; what is left is in order, and skipping all of it gives nothing."""
    queue = core.queue()
    for id in range(5):
        queue.push(row(id, at=id))
    assert ids(queue.peek(9, 2, skip=2)) == [2, 3]
    assert ids(queue.take(9, 2, skip=2)) == [2, 3]
    assert queue.take(9, 2, skip=3) == []
    assert ids(queue.take(9, 9)) == [0, 1, 4]


def test_only_rows_of_the_heads_signature_are_passed_over(core: Core) -> None:
    """Among mixed rows the count is of those that could be taken; a size budget starts behind them."""
    queue = core.queue()
    for id, signature in enumerate("xyxyxx"):
        queue.push(row(id, at=id, signature=signature, size=2))
    assert ids(queue.peek(9, 9, size_budget=3, skip=1)) == [2]
    assert ids(queue.take(9, 9, size_budget=4, skip=1)) == [2, 4]
    assert ids(queue.take(9, 9)) == [0, 5]
    assert ids(queue.take(9, 9, size_budget=2, skip=1)) == [3]


def test_capacity_is_in_rows_and_a_refused_row_changes_nothing(core: Core) -> None:
    """The third row of two is refused by name; after one leaves there is room again."""
    queue = core.queue(2)
    queue.push(row(0))
    queue.push(row(1))
    with pytest.raises(Overloaded, match="'m': the queue holds its maximum of 2 rows"):
        queue.push(row(2))
    assert [request.id for request in queue] == [0, 1]
    assert queue.capacity == 2
    assert queue.remove(0)
    queue.push(row(2))
    assert len(queue) == 2


def test_removing_finds_a_row_anywhere(core: Core) -> None:
    """Rows go from the front, the middle and the end of a group, once each."""
    queue = core.queue()
    for id in range(5):
        queue.push(row(id, at=id))
    assert [queue.remove(id) for id in (2, 0, 4, 2, 99)] == [True, True, True, False, False]
    assert ids(queue.take(9, 9)) == [1, 3]


def test_the_same_request_may_come_back(core: Core) -> None:
    """A row that left, by cancelling or by being taken, can be queued again and is taken once."""
    queue = core.queue()
    first, second = row(0), row(1, at=1)
    queue.push(first)
    queue.push(second)
    queue.remove(1)
    queue.push(second)
    assert ids(queue.take(5, 9)) == [0, 1]
    queue.push(first)
    assert ids(queue.take(5, 9)) == [0]
    assert len(queue) == 0


def test_a_retried_row_runs_alone_and_is_exempt_from_capacity(core: Core) -> None:
    """It keeps its place by arrival, is not refused by a full queue, and takes no room in it."""
    queue = core.queue(1)
    queue.push(row(5, at=10))
    queue.requeue_alone(row(1, at=0))
    queue.requeue_alone(row(2, at=1))
    assert len(queue) == 3
    with pytest.raises(Overloaded):
        queue.push(row(6, at=11))
    assert [ids(queue.take(20, 9)) for _ in range(3)] == [[1], [2], [5]]
    queue.push(row(6, at=11))


def test_the_window_starts_at_the_oldest_row_of_the_heads_signature(core: Core) -> None:
    """An older row of another signature, or the urgent head itself, does not define the window."""
    queue = core.queue()
    queue.push(row(0, at=3, signature="other"))
    queue.push(row(1, at=5, signature="x"))
    queue.push(row(2, at=9, signature="x", priority=1))
    assert queue.oldest_arrival_ns(10) == 5


def test_timeout_rejects_or_demotes_by_level(core: Core) -> None:
    """Level 0 rejects after 10, level 1 is demoted after 5 below all others, level 2 waits as long as it takes."""
    levels = {0: PriorityLevel(10), 1: PriorityLevel(5, "demote"), 2: PriorityLevel()}
    queue = core.queue(levels=levels)
    for id, priority in ((0, 1), (1, 0), (2, 2), (3, 3)):
        queue.push(row(id, at=0, priority=priority))
    assert queue.next_timeout_ns() == 5
    assert queue.expire(4) == []
    assert queue.expire(5) == []
    assert queue.next_timeout_ns() == 10
    assert ids(queue.expire(10)) == [1]
    assert queue.next_timeout_ns() is None
    assert ids(queue.take(11, 9)) == [3, 2, 0]


def test_without_levels_nothing_times_out(core: Core) -> None:
    """No level, no timeout, however long a row waits."""
    queue = core.queue()
    queue.push(row(0))
    assert queue.expire(1 << 60) == []
    assert queue.next_timeout_ns() is None


def test_hopeless_rows_are_dropped_one_nanosecond_after_their_last_chance(core: Core) -> None:
    """A row of 20 alone with a deadline of 50 can start at 30; at 31 it goes, before one that came earlier."""
    queue = core.queue(alone_ns=20)
    queue.push(row(0, at=0, sla=100))
    queue.push(row(1, at=10, sla=40))
    queue.push(row(2, at=10))
    assert queue.next_timeout_ns() == 31
    assert queue.drop(30) == []
    assert ids(queue.drop(31)) == [1]
    assert queue.next_timeout_ns() == 81
    assert ids(queue.drop(1 << 60)) == [0]
    assert queue.next_timeout_ns() is None
    assert ids(queue.take(1 << 60, 9)) == [2], "without a deadline a row is never hopeless"


def test_late_rows_are_kept_unless_they_are_to_be_dropped(core: Core) -> None:
    """Without the time of a lone row nothing is hopeless."""
    queue = core.queue()
    queue.push(row(0, sla=1))
    assert queue.drop(1 << 60) == []
    assert queue.next_timeout_ns() is None


def test_a_retried_row_is_never_hopeless(core: Core) -> None:
    """It has been promised a second run."""
    queue = core.queue(alone_ns=20)
    queue.push(row(0, sla=30))
    queue.requeue_alone(queue.take(0, 1)[0])
    assert queue.next_timeout_ns() is None
    assert queue.drop(1 << 60) == []
    assert len(queue) == 1


def test_a_demoted_row_can_still_be_hopeless(core: Core) -> None:
    """Its deadline stays when its level changes; timeouts and dropping have one next moment."""
    queue = core.queue(levels={0: PriorityLevel(10, "demote")}, alone_ns=20)
    queue.push(row(0, sla=50))
    assert queue.next_timeout_ns() == 10
    assert queue.expire(10) == []
    assert queue.next_timeout_ns() == 31
    assert ids(queue.drop(31)) == [0]


def test_demoted_rows_keep_the_order_of_arrival(core: Core) -> None:
    """Rows demoted from levels with different limits stand in one group, oldest first, whoever was demoted first."""
    levels = {0: PriorityLevel(100, "demote"), 1: PriorityLevel(10, "demote")}
    queue = core.queue(levels=levels)
    queue.push(row(0, at=0, priority=0))
    queue.push(row(1, at=20, priority=1))
    queue.expire(30)
    queue.expire(100)
    assert queue.oldest_arrival_ns(100) == 0
    assert ids(queue.take(100, 9)) == [0, 1]


def test_a_retried_row_does_not_time_out(core: Core) -> None:
    """It was admitted and has run once; waiting for its second run must not lose it."""
    queue = core.queue(levels={0: PriorityLevel(10)})
    queue.requeue_alone(row(0))
    assert queue.expire(100) == []
    assert queue.next_timeout_ns() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InfQ(0), "at least 1 row, got 0"),
        (lambda: InfQ(1, ageing_ns=0), "ageing must be a positive time, got 0 ns"),
        (lambda: PriorityLevel(0), "queue timeout must be positive, got 0 ns"),
        (lambda: PriorityLevel(1, "drop"), "'reject' or 'demote', got 'drop'"),  # type: ignore[arg-type]
    ],
)
def test_absurd_options_are_refused(make: Any, message: str) -> None:
    """Each names the option and what was expected."""
    with pytest.raises(InvalidInput, match=message):
        make()


def _lose_a_row(queue: InfQ) -> None:
    queue._live[99] = row(99)


def _miscount_retried(queue: InfQ) -> None:
    queue._retried = 1


def _overfill(queue: InfQ) -> None:
    queue._capacity = 1


def _misplace(queue: InfQ) -> None:
    stranger = row(0, sla=50, signature="elsewhere")
    queue._deadlines.add(stranger)
    queue._live[0] = stranger
    queue._groups[(0, None)][0] = stranger


def _disorder(queue: InfQ) -> None:
    queue._groups[(0, None)].reverse()


def _be_late(queue: InfQ) -> None:
    queue.due_ns += 1


def _forget_a_deadline(queue: InfQ) -> None:
    queue._deadlines._heap.clear()


def _promise_too_much(queue: InfQ) -> None:
    queue.least_sla_ns = 51


def _forget_the_group(queue: InfQ) -> None:
    queue._sole = None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_forget_the_group, "1 groups, but the only one is None"),
        (_promise_too_much, "closer to its row's arrival than 51 ns"),
        (_disorder, "not in order of arrival"),
        (_lose_a_row, "live rows \\[0, 1, 99\\] but grouped rows \\[0, 1\\]"),
        (_miscount_retried, "0 retried rows, counted 1"),
        (_overfill, "2 rows, capacity 1"),
        (_misplace, "wrong group"),
        (_be_late, "something is due at 41, not only at 42"),
        (_forget_a_deadline, "requests \\[0, 1\\] would never be found"),
    ],
)
def test_validate_notices_damage(damage: Any, message: str) -> None:
    """Each invariant can fail: a check that never fires proves nothing."""
    queue = InfQ(8, alone_ns=10)
    queue.push(row(0, sla=50))
    queue.push(row(1, sla=50))
    damage(queue)
    with pytest.raises(InvariantError, match=message):
        queue.validate()


class QueueAgainstReference(RuleBasedStateMachine):
    """The queue beside a plain list that is sorted anew for every question."""

    @initialize(
        capacity=st.integers(1, 6),
        ageing=st.one_of(st.none(), st.integers(1, 20)),
        timeouts=st.dictionaries(
            st.integers(0, 2), st.tuples(st.integers(1, 40), st.sampled_from(["reject", "demote"])), max_size=3
        ),
        alone=st.one_of(st.none(), st.integers(1, 20)),
    )
    def begin(self, capacity: int, ageing: int | None, timeouts: dict[int, tuple[int, Any]], alone: int | None) -> None:
        """An empty queue with any options."""
        self.levels = {level: PriorityLevel(*timeout) for level, timeout in timeouts.items()}
        self.queue = InfQ(capacity, levels=self.levels, ageing_ns=ageing, alone_ns=alone)
        self.capacity, self.ageing, self.alone = capacity, ageing, alone
        self.model: list[Request] = []
        self.now = 0
        self.next_id = 0
        self.taken: list[Request] = []

    def _key(self, request: Request) -> tuple[int, int, int]:
        aged = 0 if self.ageing is None else (self.now - request.arrival_ns) // self.ageing
        return (-request.priority - aged, request.arrival_ns, request.id)

    def _expected(self, rows: int, budget: int | None, skip: int) -> list[Request]:
        ordered = sorted(self.model, key=self._key)
        found: list[Request] = []
        mates = [request for request in ordered if request.signature == ordered[0].signature]
        for request in mates[skip:]:
            if len(found) == rows or (
                found and budget is not None and sum(r.size for r in found) + request.size > budget
            ):
                break
            found.append(request)
        return found

    @rule(step=st.integers(1, 15))
    def wait(self, step: int) -> None:
        """Time passes."""
        self.now += step

    @rule(
        priority=st.integers(0, 2),
        signature=st.sampled_from("xy"),
        size=st.integers(1, 4),
        sla=st.one_of(st.none(), st.integers(0, 60)),
    )
    def push(self, priority: int, signature: str, size: int, sla: int | None) -> None:
        """A row arrives; it is refused exactly when the rows that count fill the queue."""
        request = row(self.next_id, self.now, priority=priority, signature=signature, size=size, sla=sla)
        self.next_id += 1
        if sum(not isinstance(r.signature, Alone) for r in self.model) >= self.capacity:
            with pytest.raises(Overloaded):
                self.queue.push(request)
        else:
            self.queue.push(request)
            self.model.append(request)

    @rule(rows=st.integers(1, 4), budget=st.one_of(st.none(), st.integers(1, 8)), skip=st.sampled_from((0, 0, 1, 2)))
    def take(self, rows: int, budget: int | None, skip: int) -> None:
        """What is peeked is what is taken, and both are what sorting gives."""
        expected = self._expected(rows, budget, skip)
        assert self.queue.peek(self.now, rows, budget, skip) == expected
        assert self.queue.take(self.now, rows, budget, skip) == expected
        self.model = [request for request in self.model if request not in expected]
        self.taken += expected

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """A row that ran comes back to run alone."""
        request = data.draw(st.sampled_from(self.taken))
        self.taken.remove(request)
        if isinstance(request.signature, Alone):
            return
        self.queue.requeue_alone(request)
        self.model.append(replace(request, signature=Alone(request.id)))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """A waiting row is withdrawn."""
        request = data.draw(st.sampled_from(self.model))
        assert self.queue.remove(request.id)
        assert not self.queue.remove(request.id)
        self.model.remove(request)

    def _end(self, request: Request) -> int | None:
        level = self.levels.get(request.priority)
        if level is None or level.queue_timeout_ns is None or isinstance(request.signature, Alone):
            return None
        return request.arrival_ns + level.queue_timeout_ns

    def _hopeless(self, request: Request) -> int | None:
        if self.alone is None or request.deadline_ns == UNBOUNDED_NS or isinstance(request.signature, Alone):
            return None
        return request.deadline_ns - self.alone + 1

    @rule()
    def drop(self) -> None:
        """Exactly the hopeless rows go, those of the earliest deadlines first."""
        gone = [r for r in self.model if (end := self._hopeless(r)) is not None and end <= self.now]
        dropped = self.queue.drop(self.now)
        assert sorted(ids(dropped)) == sorted(ids(gone))
        assert [r.deadline_ns for r in dropped] == sorted(r.deadline_ns for r in gone)
        self.model = [r for r in self.model if r not in gone]

    @rule()
    def expire(self) -> None:
        """Exactly the rows past their limit are rejected or demoted."""
        past = [r for r in self.model if (end := self._end(r)) is not None and end <= self.now]
        rejected = {r.id for r in past if self.levels[r.priority].on_timeout == "reject"}
        assert {request.id for request in self.queue.expire(self.now)} == rejected
        self.model = [
            replace(r, priority=-1) if r in past else r for r in self.model if r not in past or r.id not in rejected
        ]

    @invariant()
    def agree(self) -> None:
        """Length, head, window and next timeout agree with the reference."""
        if not hasattr(self, "queue"):
            return
        self.queue.validate()
        assert len(self.queue) == len(self.model)
        assert sorted(self.queue, key=self._key) == sorted(self.model, key=self._key)
        head = min(self.model, key=self._key, default=None)
        assert self.queue.head(self.now) == head
        assert self.queue.urgency(self.now) == (None if head is None else self._key(head))
        mates = [request.arrival_ns for request in self.model if head and request.signature == head.signature]
        assert self.queue.oldest_arrival_ns(self.now) == min(mates, default=None)
        ends = [end for r in self.model for end in (self._end(r), self._hopeless(r)) if end is not None]
        assert self.queue.next_timeout_ns() == min(ends, default=None)


TestQueueAgainstReference = QueueAgainstReference.TestCase
TestQueueAgainstReference.settings = settings(max_examples=60, stateful_step_count=40)
