"""Lane specifications and lanes: options that contradict each other, and predicted times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.core.lengths import LENGTH_MAX
from lazybatch.errors import InvalidInput, TableMismatch
from tests.core.kit import bare_spec, lane_spec, linear, row, sub_batch
from tests.core.loop_kit import loop_spec


def test_a_lane_predicts_with_its_table() -> None:
    """Times per node by rows up to the maximum, and what one row still needs from every cursor."""
    lane = Lane(lane_spec(linear(nodes=2, fixed=90, per_row=10), max_batch_size=2))
    assert lane.times_ns == ((0, 100, 110), (0, 100, 110))
    assert lane.single_left_ns == (200, 100, 0)
    assert lane.sums_ns == ((0, 0, 0), (0, 100, 200), (0, 110, 220))
    assert (lane.model, lane.nodes, lane.rows_max) == ("m", 2, 2)


def test_a_lane_reckons_with_the_engines_own_time() -> None:
    """A table that knows it is taken as the engine runs its nodes, once, however often the specification is copied."""
    plain = lane_spec(linear(nodes=2, fixed=90, per_row=10), max_batch_size=2)
    assert plain.latency is not None
    spec = replace(plain, latency=replace(plain.latency, engine=EngineTime(30, 5, 7, 1)))
    assert spec == replace(spec)
    lane = Lane(spec)
    assert lane.times_ns == ((0, 135, 150), (0, 108, 119))
    assert lane.single_left_ns == (243, 108, 0)


def test_a_lane_without_a_table_predicts_nothing() -> None:
    """Policies that need no prediction get lanes without one."""
    lane = Lane(bare_spec(nodes=3))
    assert lane.times_ns is None
    assert lane.single_left_ns is None


def test_rows_that_cannot_join_run_one_at_a_time() -> None:
    """joinable=False makes the largest sub-batch one row, whatever max_batch_size says."""
    assert Lane(bare_spec(max_batch_size=8, joinable=False)).rows_max == 1


def test_padding_goes_to_the_next_allowed_size() -> None:
    """With sizes 1, 4, 8: three rows become four, four stay, five become eight; without sizes nothing is padded."""
    lane = Lane(bare_spec(max_batch_size=8, allowed_sizes=(1, 4, 8)))
    assert [lane.padded_rows(rows) for rows in (1, 2, 3, 4, 5, 8)] == [None, 4, 4, None, 8, None]
    assert Lane(bare_spec(max_batch_size=8)).padded_rows(3) is None


def test_newcomers_join_only_in_numbers_that_may_run() -> None:
    """Every merge on the way up the stack must give an allowed size; without sizes, or in an empty lane, all may."""
    lane = Lane(bare_spec(nodes=4, max_batch_size=8, allowed_sizes=(1, 2, 4, 8)))
    assert lane.joining_rows(3) == 3
    lane.table.push(sub_batch(0, row(0), row(1), cursor=3))
    assert [lane.joining_rows(rows) for rows in (1, 2, 3, 6)] == [0, 2, 2, 2]
    lane.table.push(sub_batch(1, row(2), row(3), cursor=2))
    assert lane.joining_rows(4) == 0, "2 + 2 would do, and then 4 + 2 not"
    free = Lane(bare_spec(nodes=4, max_batch_size=8))
    free.table.push(sub_batch(0, row(0), cursor=3))
    assert free.joining_rows(3) == 3


def test_the_best_size_is_the_largest_of_nearly_the_best_throughput() -> None:
    """The maximum where larger batches pay or cost nothing; where they cost more than 2 %, the last that does not."""
    sizes = (1, 4, 8)
    for times, best in (((100, 200, 300), 8), ((100, 400, 815), 8), ((100, 400, 820), 6), ((100, 200, 800), 4)):
        table = LatencyTable("m", ("a",), sizes, (times,), (times,))
        assert Lane(lane_spec(table, max_batch_size=8)).rows_best == best
    assert Lane(lane_spec(linear(), max_batch_size=8, joinable=False)).rows_best == 1
    assert Lane(bare_spec(max_batch_size=8)).rows_best == 8


def test_padded_sizes_cost_what_is_executed() -> None:
    """Three rows run as four, and seven as eight: only full sizes are good for throughput."""
    lane = Lane(lane_spec(linear(fixed=0), max_batch_size=8, allowed_sizes=(1, 4, 8)))
    assert [lane.run_ns(rows) for rows in (1, 3, 4, 7, 8)] == [10, 40, 40, 80, 80]
    assert lane.rows_best == 8


def test_rows_that_a_full_batch_makes_late_are_passed_over() -> None:
    """Batches of two take 110. Of five rows two are late by then; more are not passed over than leave a full batch."""
    for slas, passed in (
        ((109, 109, 110, 500, 500), 2),
        ((109, 500, 109, 109, 109), 1),
        ((500, 109, 109, 109, 109), 0),
        ((109, 109, 109, 109, 109), 3),
        ((109, 109), 0),
    ):
        lane = Lane(lane_spec(late="drop", max_batch_size=2))
        for id, sla in enumerate(slas):
            lane.queue.push(row(id, sla=sla))
        assert lane.made_late(2, 0) == passed


def test_nothing_is_passed_over_where_late_rows_are_served_or_cannot_fill_a_batch() -> None:
    """Served late, every row gets its turn in order; rows of another signature do not fill the batch."""
    serving, mixed = Lane(lane_spec(max_batch_size=2)), Lane(lane_spec(late="drop", max_batch_size=2))
    for id in range(4):
        serving.queue.push(row(id, sla=1))
        mixed.queue.push(row(id, sla=105 + id, signature=id % 4))
    assert serving.made_late(2, 0) == 0
    assert mixed.made_late(2, 0) == 0


@pytest.mark.parametrize(("sizes", "last_chance"), [((), 800), ((4, 8), 740)])
def test_a_row_is_hopeless_by_the_size_it_would_run_at(sizes: tuple[int, ...], last_chance: int) -> None:
    """Two nodes take 200 alone; where the smallest size that runs is 4, they take 260."""
    lane = Lane(lane_spec(linear(nodes=2), max_batch_size=8, allowed_sizes=sizes, late="drop"))
    lane.queue.push(row(0, sla=1_000))
    assert lane.queue.next_timeout_ns() == last_chance + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "'m': max_batch_size must be at least 1, got 0"),
        ({"sla_ns": 0}, "'m': the SLA target must be positive, got 0 ns"),
        ({"allowed_sizes": (0, 16)}, "'m': allowed sizes must be positive and increase, got \\[0, 16\\]"),
        ({"allowed_sizes": (4, 4, 16)}, "'m': allowed sizes must be positive and increase"),
        ({"allowed_sizes": (1, 8)}, "'m': the largest allowed size is 8, max_batch_size is 16; they must be equal"),
        ({"queue_capacity": 0}, "queue capacity must be at least 1 row"),
        ({"late": "reject"}, "'m': late must be 'serve' or 'drop', got 'reject'"),
        ({"late": "drop"}, "'m': late='drop' needs a latency table"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], message: str) -> None:
    """Each error names the model, the option and what was expected."""
    with pytest.raises(InvalidInput, match=message):
        Lane(bare_spec(**options))


def test_loops_are_not_held_to_allowed_sizes() -> None:
    """Rows come and go at every step there."""
    with pytest.raises(InvalidInput, match=r"'m' has loops, .* allowed sizes \[1, 4\]"):
        loop_spec(2, (0, 1), max_batch_size=4, allowed_sizes=(1, 4))


def test_a_table_of_other_nodes_is_refused() -> None:
    """A table measured for another partition would predict nonsense; both shapes are shown."""
    graph = NodeGraph.chain("m", ["a", "b"])
    with pytest.raises(TableMismatch, match=r"'m' has the nodes 2 \[a .. b\], .* 'm' has 3 \[node0 .. node2\]"):
        LaneSpec(graph, linear(nodes=3))


def test_a_maximum_that_means_no_limit_is_not_planned_with() -> None:
    """Where no lengths were seen, the loop's maximum stands for them only as far as lengths can be characterised."""
    assert loop_spec(1, (0, 1), trips_max=(1 << 31) - 1).trips(0) == (1, LENGTH_MAX, LENGTH_MAX)
    assert loop_spec(1, (0, 1), trips_max=7).trips(0) == (1, 7, 7)
