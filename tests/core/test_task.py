"""The records that leave the core."""

from __future__ import annotations

import pytest

from lazybatch.core.task import Cancellation, Completion, Failure, Merge, Reason, Split, Task, Where


def test_records_do_not_change() -> None:
    """Drivers and observers keep them, so they are immutable."""
    task = Task("m", 0, 0, 1, 1, (7,), None, Reason.CONTINUE)
    for record, field in ((task, "node"), (Merge("m", 0, 1), "target"), (Completion(), "finished")):
        with pytest.raises(AttributeError):
            setattr(record, field, 1)


def test_nothing_happened_is_the_default() -> None:
    """A record without arguments says that nobody left and nothing merged."""
    assert Completion() == ((), (), None, (), ())
    assert Failure((), (), ()).merges == ()
    assert Cancellation(Where.UNKNOWN) == (Where.UNKNOWN, None, False, ())


def test_who_leaves_a_loop_is_counted_once() -> None:
    """Those who are finished, and those who go on behind it; rows that were cancelled have nothing."""
    assert Completion(evicted=(5,)).leaving == 0
    assert Completion(finished=(1, 2)).leaving == 2
    assert Completion(finished=(1,), split=Split("m", 0, 1, (3, 4))).leaving == 3


def test_reasons_are_distinct_readable_texts() -> None:
    """`stats()` counts by reason and shows the text."""
    assert len({str(reason) for reason in Reason}) == len(Reason)
    assert str(Reason.PREEMPT_SLACK) == "preempt: newcomers catch up, slack allows it"
