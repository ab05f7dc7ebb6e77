"""Counts of rows."""

from __future__ import annotations

from lazybatch.core.counts import Counts


def test_every_way_out_is_a_way_out() -> None:
    """Rows that left are those of all ways to leave; what came in and what the policy did wrong are none."""
    assert Counts().left == 0
    assert (
        Counts(added=99, finished=1, failed=20, cancelled=300, rejected=4000, dropped=50000, policy_failures=7).left
        == 54321
    )
