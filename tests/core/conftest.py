"""Every scheduler, table and queue that a core test uses is validated when the test ends.

Owns: the fixture `core`, which hands them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lazybatch.core.batch_table import BatchTable
from lazybatch.core.infq import InfQ, PriorityLevel
from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies import Policy
from lazybatch.core.scheduler import Scheduler


class Core:
    """Makes the objects under test, and remembers them for `validate`."""

    def __init__(self) -> None:
        self._made: list[Scheduler | BatchTable | InfQ] = []

    def scheduler(self, policy: Policy, *lanes: LaneSpec, **options: Any) -> Scheduler:
        """A scheduler over these lanes."""
        made = Scheduler(lanes, policy, **options)
        self._made.append(made)
        return made

    def table(self, nodes: int = 8, max_rows: int = 16, **options: Any) -> BatchTable:
        """An empty stack."""
        made = BatchTable(nodes, max_rows, **options)
        self._made.append(made)
        return made

    def queue(
        self,
        capacity: int = 256,
        *,
        levels: Mapping[int, PriorityLevel] | None = None,
        ageing_ns: int | None = None,
        alone_ns: int | None = None,
    ) -> InfQ:
        """An empty queue."""
        made = InfQ(capacity, levels=levels, ageing_ns=ageing_ns, alone_ns=alone_ns)
        self._made.append(made)
        return made

    def validate(self) -> None:
        """Check every invariant of everything made so far."""
        for made in self._made:
            made.validate()


@pytest.fixture
def core() -> Iterator[Core]:
    """Makes schedulers, tables and queues, and validates all of them at teardown."""
    made = Core()
    yield made
    made.validate()
