"""Steps of graphs with loops: what differs from a chain in running one node.

Owns: `Stepped`, what came of a node, and `run_node`, which lets newcomers in, runs it, and asks what it emitted.
Must not know: the scheduler, futures, who listens.

On a chain the last node gives the results, and whoever runs it knows so. In a loop the scheduler says after every body
who leaves, so results are fetched at the node boundary (`engine.holdings`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from lazybatch.core.task import Task
from lazybatch.executors.base import LoopExecutor, Row

Emitted = Mapping[int, Mapping[str, Any]]
_NOTHING: Emitted = {}


class Stepped(NamedTuple):
    """What came of a node.

    done: requests that the last node of a body found to be done. emitted: see `LoopExecutor.emitted`.
    error: what was raised instead, or None. refused: it was raised by those who were to be let in; whom they were to
    join is as it was.
    """

    done: Collection[int] = ()
    emitted: Emitted = _NOTHING
    error: BaseException | None = None
    refused: bool = False


_QUIET = Stepped()
"""What comes of most nodes."""


def run_node(
    task: Task,
    executor: LoopExecutor,
    rows: Mapping[int, Row] | None,
    listen: bool,
    entered: Callable[[], None] | None = None,
) -> Stepped:
    """Run one node of a graph with loops. Never raises.

    rows: newcomers, else None. listen: whether to ask what the rows emitted. entered: called right before the node
    runs, when the newcomers have been gathered.
    """
    refused = False
    try:
        if rows is not None:
            refused = task.joined is not None
            if task.joined is None:
                executor.open(task.sub_batch, rows, task.padded_rows)
            else:
                executor.open(task.joined, rows, len(rows))
                refused = False
                executor.merge(task.sub_batch, task.joined)
        if entered is not None:
            entered()
        done = executor.run(task.sub_batch, task.node)
        if listen:
            return Stepped(done or (), executor.emitted(task.sub_batch))
        return Stepped(done) if done else _QUIET
    except BaseException as error:
        return Stepped(error=error, refused=refused)
