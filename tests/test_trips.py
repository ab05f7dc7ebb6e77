"""Trips of simulated requests: fixed, or drawn from rows that were seen; and the loops of a table they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import correlation
from typing import Any

import pytest

from lazybatch.core.graph import Loop
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput
from lazybatch.lengths import Lengths
from lazybatch.policies import make_policy
from lazybatch.simulator import requests_from, simulate
from lazybatch.table_loops import KEY, TableLoop, described, graph_of, loops_of
from lazybatch.trips import drawn, fixed
from lazybatch.workload import bursty, poisson

LOOPS = (TableLoop(Loop("encoder", 0, 1), counted=True, iterations=4), TableLoop(Loop("decoder", 1, 3, True, 30)))


def table(loops: Any = LOOPS) -> LatencyTable:
    """Four nodes; the first is the encoder's loop, the next two are the decoder's."""
    made = LatencyTable.uniform("m", 4, 1_000_000, 100_000, (1, 2, 4))
    return replace(made, provenance={KEY: described(loops) if loops is LOOPS else loops})


class TestLoopsOfATable:
    """What a table keeps of its graph."""

    def test_there_and_back(self) -> None:
        """Names, nodes, maxima and what is known beforehand; static tables have no loops."""
        assert loops_of(table()) == LOOPS
        assert graph_of(table()).loops == tuple(one.loop for one in LOOPS)
        assert graph_of(replace(table(), provenance={})).loops == ()

    @pytest.mark.parametrize(
        "loops",
        [
            3,
            [3],
            [{}],
            [{"name": "a", "first": "0", "stop": 1}],
            [{"name": "a", "first": 0, "stop": 1, "trips_max": "x"}],
        ],
    )
    def test_damage(self, loops: Any) -> None:
        """Named with the model."""
        with pytest.raises(InvalidInput, match="latency table of 'm': its loops are damaged"):
            loops_of(table(loops))

    def test_loops_outside_the_nodes(self) -> None:
        """The graph itself refuses them."""
        with pytest.raises(InvalidInput, match="loop 'a' is the nodes"):
            graph_of(table([{"name": "a", "first": 2, "stop": 9}]))


class TestFixed:
    """The same for every request."""

    def test_one_number_or_one_per_loop(self) -> None:
        """The scheduler is told what is known beforehand, and a guess of the rest; maxima hold."""
        requests = requests_from([0, 1], "m")
        same = fixed(table(), "12")
        assert same.truth(requests) == {0: (12, 12), 1: (12, 12)}
        assert [request.trips for request in same.told(requests)] == [(12, None), (12, None)]
        assert fixed(table(), "encoder=5, decoder=99").truth(requests)[0] == (5, 30)
        assert fixed(table(), "7,decoder=9").truth(requests)[1] == (7, 9)
        guess = same.guesses[1]
        assert guess is not None
        assert guess.covering(1) == 12

    @pytest.mark.parametrize("text", ["", "0", "-3", "x", "decoder=", "2.5", "99999999"])
    def test_no_numbers(self, text: str) -> None:
        """What was given, and what is expected."""
        with pytest.raises(InvalidInput, match="trips must be whole numbers"):
            fixed(table(), text)

    @pytest.mark.parametrize("text", ["3,4", "encoder=3,decoder=4,encoder=3"])
    def test_given_twice(self, text: str) -> None:
        """It is not guessed which of the two is meant."""
        with pytest.raises(InvalidInput, match="are given twice for"):
            fixed(table(), text)

    def test_loops_that_are_not_there_or_left_out(self) -> None:
        """Both are named."""
        with pytest.raises(InvalidInput, match="'m' has no loop 'middle'; it has encoder, decoder"):
            fixed(table(), "middle=3")
        with pytest.raises(InvalidInput, match="say nothing of loop 'encoder'"):
            fixed(table(), "decoder=3")


class TestDrawn:
    """From rows that were seen."""

    def test_what_one_row_did_stays_together(self) -> None:
        """Input size, encoder and decoder of one request are of one row; the seed decides which."""
        pairs = {"encoder": [(n, n) for n in range(1, 21)], "decoder": [(n, n + 3) for n in range(1, 21)]}
        made = drawn(table(), Lengths(pairs), 200, seed=1)
        assert made.rows == drawn(table(), Lengths(pairs), 200, seed=1).rows
        assert made.rows != drawn(table(), Lengths(pairs), 200, seed=2).rows
        assert all(counts == (size, size + 3) for size, counts in made.rows)
        assert len({size for size, _ in made.rows}) > 15
        told = made.told(requests_from(list(range(200)), "m"))
        assert [(one.size, one.trips) for one in told] == [(size, (counts[0], None)) for size, counts in made.rows]

    @pytest.mark.parametrize("arrivals", [poisson, bursty])
    def test_long_rows_come_no_later_than_short_ones(self, arrivals: Callable[[float, int, int], list[int]]) -> None:
        """Arrivals of the same seed and rows of a file in order of length have nothing to do with each other."""
        rows = Lengths({"decoder": [(1, n) for n in range(1, 31)]})
        for seed in range(3):
            times_ns = [0, *arrivals(100.0, 4_000, seed)]
            gaps_ns = [later - earlier for earlier, later in pairwise(times_ns)]
            trips = [counts[1] for _, counts in drawn(table(), rows, 4_000, seed).rows]
            assert abs(correlation(gaps_ns, trips)) < 0.08

    def test_a_known_loop_without_lengths(self) -> None:
        """It goes round as often as the input is long."""
        made = drawn(table(), Lengths({"decoder": [(6, 9)]}), 3, seed=0)
        assert made.rows == ((6, (6, 9)),) * 3
        assert made.guesses[0] is None

    def test_the_lengths_of_any_loop_are_not_those_of_the_input(self) -> None:
        """Where "*" tells both, a loop around the input takes the one and the other loops the other; named, its own."""
        pairs = [(n, 40 - n) for n in range(10, 30)]
        made = drawn(table(), Lengths({"*": pairs}), 50, seed=1)
        assert all(counts == (size, min(30, 40 - size)) for size, counts in made.rows)
        guess = made.guesses[0]
        assert guess is not None
        assert guess.mean_trips == 19.5
        own = drawn(table(), Lengths({"*": pairs, "encoder": [(size, 7) for size, _ in pairs]}), 50, seed=1)
        assert {counts[0] for _, counts in own.rows} == {7}

    def test_lengths_of_any_loop_without_inputs(self) -> None:
        """Nothing but the outputs is known; and of the only loop of a graph they are what was meant."""
        made = drawn(table(), Lengths({"*": [(1, 9)]}), 3, seed=0)
        assert made.rows == ((1, (9, 9)),) * 3
        alone = drawn(table(described(LOOPS[:1])), Lengths({"*": [(6, 9)]}), 3, seed=0)
        assert alone.rows == ((6, (9,)),) * 3

    def test_lengths_that_do_not_fit(self) -> None:
        """A loop nobody knows anything of; loops with different rows; loops the table does not have."""
        with pytest.raises(InvalidInput, match="say nothing of loop 'decoder' of 'm'"):
            drawn(table(), Lengths({"encoder": [(1, 1)]}), 1, 0)
        with pytest.raises(InvalidInput, match=r"different numbers of rows \[1, 2\]"):
            drawn(table(), Lengths({"encoder": [(1, 1)], "decoder": [(1, 1), (2, 2)]}), 1, 0)
        with pytest.raises(InvalidInput, match="loop 'middle'"):
            drawn(table(), Lengths({"middle": [(1, 1)]}), 1, 0)


@pytest.mark.parametrize("policy", ["serial", "graph", "cellular", "continuous", "lazy", "oracle", "lookahead"])
def test_simulated(policy: str) -> None:
    """Every policy serves all rows of such a table; one alone takes its nodes' times as often as it goes round."""
    made = table()
    trips = drawn(made, Lengths({"decoder": [(n % 7 + 1, n % 11 + 1) for n in range(77)]}), 60, seed=3)
    lane = LaneSpec(graph_of(made), made, max_batch_size=4, lengths=trips.guesses)
    requests = requests_from([k * 5_000_000 for k in range(60)], "m")
    result = simulate([lane], make_policy(policy, [lane]), trips.told(requests), trips=trips.truth(requests))
    assert len(result.latencies_ns) == 60
    single_ns = [times[0] for times in made.median_ns]
    for request in requests:
        encoder, decoder = trips.rows[request.id][1]
        least_ns = encoder * single_ns[0] + decoder * (single_ns[1] + single_ns[2]) + single_ns[3]
        assert result.latencies_ns[request.id] >= least_ns
    first, (one, two) = result.latencies_ns[0], trips.rows[0][1]
    if policy == "serial":
        assert first == one * single_ns[0] + two * (single_ns[1] + single_ns[2]) + single_ns[3]
