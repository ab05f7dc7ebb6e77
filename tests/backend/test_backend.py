"""The onnx package's backend cases: node by node equals whole, or is refused with a reason.

`python -m tests.backend` prints the same counts outside pytest.
"""

from __future__ import annotations

import pytest

from tests.backend.corpus import sources
from tests.backend.outcome import Outcome, Status, report
from tests.backend.shards import run_sources

ALL = sources()
# Every fourteenth module of node cases, a folder of small nets and a light network: seconds on two cores; joined every
# other of them; the long suite takes all. Chosen by position, so that the subset is the same on every machine with the
# same onnx package.
FAST = ["pytorch-operator", "light/light_squeezenet", *[source for source in ALL if "/" not in source][11::14]]
FAST_JOINED = FAST[::2]


def _judge(mode: str, chosen: list[str], matched_min: float, capsys: pytest.CaptureFixture[str]) -> list[Outcome]:
    """Run, print the counts, and check that nothing mismatched and that refusing was the exception."""
    outcomes = run_sources(mode, chosen)
    with capsys.disabled():
        print(f"\n[{mode}, {len(chosen)} sources] {report(outcomes)}")
    count = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    wrong = [f"{outcome.id}: {outcome.detail}" for outcome in outcomes if outcome.status is Status.MISMATCHED]
    assert not wrong, "\n".join(wrong)
    judged = count[Status.MATCHED] + count[Status.REFUSED]
    assert judged, "nothing was judged"
    assert count[Status.MATCHED] >= matched_min * judged, report(outcomes)
    return outcomes


def test_a_sample_node_by_node_equals_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A fixed sample of the suite: the bits of the whole optimised model, and hardly anything refused."""
    _judge("as_is", FAST, 0.9, capsys)


def test_a_sample_joined_equals_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the sample with a free batch: what is declared joinable gives every row what it gets alone."""
    outcomes = _judge("relaxed", FAST_JOINED, 0.5, capsys)
    assert sum(outcome.joinable for outcome in outcomes) >= 20, "hardly anything was proved joinable"


@pytest.mark.slow
def test_all_node_by_node_equals_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """All of the suite, the light networks with weights of their own included."""
    outcomes = _judge("as_is", ALL, 0.9, capsys)
    assert sum(outcome.status is Status.MATCHED for outcome in outcomes) >= 1500
    light = [outcome for outcome in outcomes if outcome.id.startswith("light/")]
    assert len(light) == 9
    assert all(outcome.nodes > 3 for outcome in light), "the light networks must really be cut"


@pytest.mark.slow
def test_all_joined_equals_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """All of the suite with a free batch."""
    outcomes = _judge("relaxed", ALL, 0.5, capsys)
    assert sum(outcome.joinable for outcome in outcomes) >= 500
