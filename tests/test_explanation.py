"""Decisions in words: the sentences, the records, and which decisions are told."""

from __future__ import annotations

import json

import pytest

from lazybatch.core.graph import NodeGraph
from lazybatch.core.scheduler import Decision
from lazybatch.core.task import Comparison, Reason, Task
from lazybatch.explanation import Explanation, latest, telling

GRAPHS = {"m": NodeGraph.chain("m", ("conv", "fc")), "n": NodeGraph.chain("n", ("all",))}
STARTED = Task("m", 1, 0, 2, 2, (7, 8), None, Reason.START_IDLE)
WENT_ON = Task("m", 1, 1, 2, 2, (), None, Reason.CONTINUE)
HELD_BACK = Task("m", 1, 1, 2, 2, (), None, Reason.STAY_CHEAPER, Comparison(1e6, 2.5e6, 0, 0))
PREEMPTED = Task("n", 2, 0, 1, 1, (9,), 1, Reason.PREEMPT_CHEAPER, Comparison(3e6, 2e6, 1, 0))
LOG = [Decision(at_ns, task) for at_ns, task in enumerate((STARTED, WENT_ON, HELD_BACK, PREEMPTED), start=1_500_000)]


def test_sentences() -> None:
    """A start, a comparison that ended in going on, a preemption: who, what, why, and the two costs."""
    assert [str(one) for one in latest(LOG, GRAPHS, 10)] == [
        "1.500 ms, model 'm': 2 rows started as sub-batch 1; start: processor is free",
        "1.500 ms, model 'm': sub-batch 1 (2 rows) goes on with 'fc'; continue: newcomers wait, predicted to cost less "
        "(row-milliseconds: 1.000 going on, 2.500 starting)",
        "1.500 ms, model 'n': 1 row started as sub-batch 2, sub-batch 1 is parked; "
        "preempt: newcomers catch up, predicted to cost less "
        "(row-milliseconds: 3.000 going on, 2.000 starting, late rows 1 against 0)",
    ]


def test_rows_that_join_a_running_loop() -> None:
    """How many came, and that the sub-batch was there before."""
    task = Task("m", 4, 0, 5, 5, (7, 8), None, Reason.JOIN_STEP, None, 6)
    (one,) = latest([Decision(2_000_000, task)], GRAPHS, 1)
    assert one.joined
    assert str(one) == "2.000 ms, model 'm': 2 of 5 rows joined sub-batch 4; join: newcomers enter the running loop"


def test_what_tells_something() -> None:
    """Starts and comparisons; a sub-batch that merely went on decided nothing."""
    assert [telling(decision.task) for decision in LOG] == [True, False, True, True]


def test_the_latest() -> None:
    """The last ones, oldest first, of all models or of those whose graphs are given; none where none are asked for."""
    assert [one.reason for one in latest(LOG, GRAPHS, 2)] == [Reason.STAY_CHEAPER, Reason.PREEMPT_CHEAPER]
    assert [one.opened for one in latest(LOG, {"m": GRAPHS["m"]}, 1)] == [()]
    assert [one.opened for one in latest(LOG, {"n": GRAPHS["n"]}, 9)] == [(9,)]
    assert latest(LOG, GRAPHS, 0) == []
    assert latest([], GRAPHS, 5) == []


def test_times_count_from_a_start() -> None:
    """Where the log's clock did not begin at zero."""
    (one,) = latest(LOG, GRAPHS, 1, start_ns=1_000_000)
    assert one.at_ns == 500_003
    assert str(one).startswith("0.500 ms, ")


def test_records() -> None:
    """Every field is there to read, in JSON too, and none can be changed."""
    (one,) = latest(LOG, GRAPHS, 1)
    assert one == Explanation(1_500_003, "n", "all", 2, 1, (9,), 1, Reason.PREEMPT_CHEAPER, Comparison(3e6, 2e6, 1, 0))
    plain = json.loads(json.dumps(one.as_dict()))
    assert plain["reason"] == "preempt: newcomers catch up, predicted to cost less"
    assert plain["comparison"] == {"stay_cost": 3e6, "start_cost": 2e6, "stay_late": 1, "start_late": 0}
    assert latest(LOG[:3], GRAPHS, 1)[0].as_dict()["opened"] == []
    assert latest(LOG[:1], GRAPHS, 1)[0].as_dict()["comparison"] is None
    with pytest.raises(AttributeError):
        one.rows = 5  # type: ignore[misc]
