"""The BatchTable: Fig. 10 step by step, merging rules, invariants, and a state machine over all of its moves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lazybatch.core.batch_table import BatchTable, SubBatch
from lazybatch.core.task import Merge
from lazybatch.errors import InvariantError
from tests.core.conftest import Core
from tests.core.kit import row, sub_batch


def shown(table: BatchTable) -> list[tuple[list[int], str]]:
    """The stack as the paper draws it, bottom first: request ids and the letter of their next node."""
    return [(sorted(entry.ids()), "ABCDEFGH"[entry.cursor]) for entry in table]


def test_figure_ten(core: Core) -> None:
    """The paper's worked example: nodes A..H of one time-unit; Req2 and Req3 catch up with Req1 and join it."""
    table = core.table(nodes=8)
    one, two, three = (sub_batch(id, row(id)) for id in (1, 2, 3))

    table.push(one)
    assert shown(table) == [([1], "A")], "t=2: Req1 enters"

    one.cursor += 1
    assert table.merge() == ()
    assert shown(table) == [([1], "B")], "t=3: Req1 ran A; Req2 arrives while it runs B"

    one.cursor += 1
    table.push(two)
    assert shown(table) == [([1], "C"), ([2], "A")], "t=4: Req1 is preempted before C, Req2 is active"

    two.cursor += 1
    assert table.merge() == ()
    table.push(three)
    assert shown(table) == [([1], "C"), ([2], "B"), ([3], "A")], "t=5: Req2 is preempted in turn, Req3 is active"

    three.cursor += 1
    assert table.merge() == (Merge("m", target=2, source=3),)
    assert shown(table) == [([1], "C"), ([2, 3], "B")], "t=6: Req3 reached B, where Req2 waits: one sub-batch"

    two.cursor += 1
    assert table.merge() == (Merge("m", target=1, source=2),)
    assert shown(table) == [([1, 2, 3], "C")], "t=7: all three stand at C and go on together"
    assert table.top is one
    assert table.rows == 3

    table.remove(one)
    assert table.top is None
    assert len(table) == 0


def test_several_entries_meet_at_once(core: Core) -> None:
    """When the top merges and the result meets the next one, that merges too, in the order a driver must follow."""
    table = core.table()
    for id, cursor in ((1, 2), (2, 2), (3, 2)):
        table.push(sub_batch(id, row(id), cursor=cursor))
    assert table.merge() == (Merge("m", 2, 3), Merge("m", 1, 2))
    assert shown(table) == [([1, 2, 3], "C")]


def test_only_the_top_two_merge(core: Core) -> None:
    """Entries further down wait, also when they could join; they meet when they surface."""
    table = core.table()
    for id, cursor in ((1, 4), (2, 4), (3, 1)):
        table.push(sub_batch(id, row(id), cursor=cursor))
    assert table.merge() == ()
    table.remove([*table][2])
    assert table.merge() == (Merge("m", 1, 2),)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (sub_batch(1, row(1), cursor=2), sub_batch(2, row(2), cursor=1)),
        (sub_batch(1, row(1, signature="x")), sub_batch(2, row(2, signature="y"))),
        (sub_batch(1, row(1), padded_rows=2), sub_batch(2, row(2))),
        (sub_batch(1, row(1)), sub_batch(2, row(2), padded_rows=2)),
        (sub_batch(1, row(1), row(2)), sub_batch(2, row(3), row(4))),
    ],
    ids=["other node", "other signature", "padded below", "padded above", "too many rows"],
)
def test_what_must_not_merge_does_not(core: Core, lower: SubBatch, upper: SubBatch) -> None:
    """Another node, another signature, padding, or more rows than the maximum keep two entries apart."""
    table = core.table(max_rows=3)
    table.push(lower)
    table.push(upper)
    assert table.merge() == ()
    assert len(table) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_running_entry_does_not_merge(core: Core, which: int) -> None:
    """Its tensors are in use until the node ends."""
    table = core.table()
    for id in (1, 2):
        table.push(sub_batch(id, row(id)))
    running = [*table][which]
    running.running = True
    assert table.merge() == ()
    running.running = False
    assert len(table.merge()) == 1


def test_merged_rows_are_one_of_the_allowed_sizes(core: Core) -> None:
    """Where only sizes 1, 2 and 4 may run, 2 + 1 rows stay apart and 2 + 2 join."""
    table = core.table(max_rows=4, sizes=(1, 2, 4))
    table.push(sub_batch(1, row(1), row(2)))
    table.push(sub_batch(2, row(3)))
    assert table.merge() == ()
    table.remove([*table][1])
    table.push(sub_batch(3, row(4), row(5)))
    assert table.merge() == (Merge("m", 1, 3),)


def test_absorbing_keeps_deadlines_sorted(core: Core) -> None:
    """Deadlines of both sides are merged in order; the rows of the lower side come first."""
    table = core.table()
    table.push(sub_batch(1, row(1, sla=30), row(2, sla=10)))
    table.push(sub_batch(2, row(3, sla=20)))
    table.merge()
    assert table.top is not None
    assert table.top.deadlines_ns == [10, 20, 30]
    assert table.top.ids() == (1, 2, 3)


def test_evicting_drops_rows_and_at_last_the_entry(core: Core) -> None:
    """Rows leave with their deadlines, in row order; an entry without rows is gone."""
    table = core.table()
    entry = sub_batch(1, row(1, sla=30), row(2, sla=10), row(3, sla=20))
    table.push(entry)
    assert table.evict(entry, {3, 1, 99}) == (1, 3)
    assert entry.deadlines_ns == [10]
    assert table.rows == 1
    assert table.evict(entry, {2}) == (2,)
    assert len(table) == 0
    assert table.rows == 0


def test_a_sub_batch_shows_itself() -> None:
    """Errors print entries, so an entry prints its id, node and requests."""
    assert repr(sub_batch(7, row(1), row(2), cursor=3)) == "SubBatch(7, node 3, requests (1, 2))"


def _twice(table: BatchTable, entry: SubBatch) -> None:
    table.push(sub_batch(9, *entry.requests, cursor=1))


def _miscount(table: BatchTable, entry: SubBatch) -> None:
    table.rows = 7


def _empty(table: BatchTable, entry: SubBatch) -> None:
    entry.evict({1, 2})
    table.rows = 0


def _too_many(table: BatchTable, entry: SubBatch) -> None:
    table.push(sub_batch(9, *(row(id) for id in range(10, 15)), cursor=1))


def _outside(table: BatchTable, entry: SubBatch) -> None:
    entry.cursor = 8


def _mixed(table: BatchTable, entry: SubBatch) -> None:
    entry.signature = "other"


def _wrong_deadlines(table: BatchTable, entry: SubBatch) -> None:
    entry.deadlines_ns = [1, 2]


def _doomed(table: BatchTable, entry: SubBatch) -> None:
    entry.doomed = {1}


def _unmerged(table: BatchTable, entry: SubBatch) -> None:
    table.push(sub_batch(9, row(10)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_twice, "a request is in two sub-batches"),
        (_miscount, "counted 7 rows, found 2"),
        (_empty, "empty entry"),
        (_too_many, "has more than 4 rows"),
        (_outside, "stands outside 0..7"),
        (_mixed, "mixes signatures"),
        (_wrong_deadlines, "has wrong deadlines"),
        (_doomed, "parked with cancelled rows"),
        (_unmerged, "meet but are not merged"),
    ],
)
def test_validate_notices_damage(damage: Any, message: str) -> None:
    """Each invariant can fail: a check that never fires proves nothing."""
    table = BatchTable(8, 4)
    entry = sub_batch(1, row(1), row(2))
    table.push(entry)
    table.validate()
    damage(table, entry)
    with pytest.raises(InvariantError, match=message):
        table.validate()


class BatchTableMoves(RuleBasedStateMachine):
    """Push, advance, merge, evict and remove in any order, beside a plain record of where every row stands."""

    @initialize(nodes=st.integers(1, 5), max_rows=st.integers(1, 6))
    def begin(self, nodes: int, max_rows: int) -> None:
        """An empty stack."""
        self.table = BatchTable(nodes, max_rows)
        self.nodes, self.max_rows = nodes, max_rows
        self.next_id = 0
        self.at: dict[int, int] = {}
        self.mates: dict[int, str] = {}
        self.done: set[int] = set()

    @rule(rows=st.integers(1, 6), signature=st.sampled_from("xy"), slas=st.integers(0, 50), padded=st.booleans())
    def push(self, rows: int, signature: str, slas: int, padded: bool) -> None:
        """Newcomers enter at the first node; what stands there already takes them in."""
        rows = min(rows, self.max_rows)
        first = self.next_id
        self.next_id += rows
        requests = [row(first + k, signature=signature, sla=slas * (k % 3)) for k in range(rows)]
        entry = sub_batch(first, *requests, padded_rows=self.max_rows if padded else None)
        self.table.push(entry)
        for request in requests:
            self.at[request.id] = 0
            self.mates[request.id] = signature
        self._merge()

    @precondition(lambda self: len(self.table))
    @rule()
    def advance(self) -> None:
        """The top runs its node: it moves on, meets others, or is done."""
        entry = self.table.top
        assert entry is not None
        entry.cursor += 1
        for id in entry.ids():
            assert self.at[id] == entry.cursor - 1
            self.at[id] += 1
        if entry.cursor == self.nodes:
            self.table.remove(entry)
            for id in entry.ids():
                assert self.at.pop(id) == self.nodes
                self.done.add(id)
        self._merge()

    @precondition(lambda self: len(self.table))
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Any rows of any entry are withdrawn."""
        entry = data.draw(st.sampled_from([*self.table]))
        ids = data.draw(st.sets(st.sampled_from(entry.ids()), min_size=1))
        assert set(self.table.evict(entry, ids)) == ids
        for id in ids:
            del self.at[id]
        self._merge()

    @precondition(lambda self: len(self.table))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Any entry fails as a whole."""
        entry = data.draw(st.sampled_from([*self.table]))
        self.table.remove(entry)
        for id in entry.ids():
            del self.at[id]
        self._merge()

    def _merge(self) -> None:
        before = {entry.id: (entry.cursor, len(entry)) for entry in self.table}
        for merge in self.table.merge():
            (lower, rows), (upper, more) = before[merge.target], before.pop(merge.source)
            assert lower == upper, "entries merge at equal nodes only"
            before[merge.target] = (lower, rows + more)
            assert rows + more <= self.max_rows

    @invariant()
    def holds(self) -> None:
        """Every row is in exactly one entry, at the node it has reached, with mates of its signature."""
        if not hasattr(self, "table"):
            return
        self.table.validate()
        assert {id: entry.cursor for entry in self.table for id in entry.ids()} == self.at
        assert self.table.rows == len(self.at)
        for entry in self.table:
            assert {self.mates[id] for id in entry.ids()} == {entry.signature}

    def teardown(self) -> None:
        """Run to the end: everything in the stack gets done, once."""
        if not hasattr(self, "table"):
            return
        for _ in range(self.nodes * (len(self.table) + 1)):
            if not len(self.table):
                break
            self.advance()
        assert not self.at
        assert len(self.table) == 0


TestBatchTableMoves = BatchTableMoves.TestCase
TestBatchTableMoves.settings = settings(max_examples=40, stateful_step_count=40)
