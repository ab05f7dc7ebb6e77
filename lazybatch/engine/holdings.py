"""Holdings: which rows lie in which sub-batch of an executor, and every call that moves them.

Owns: `Holdings`: rows leave, sub-batches split, join and end; and what follows when an executor cannot do it.
Must not know: the scheduler, what rows are told, running nodes.

The scheduler has already done what is carried out here. So an executor that fails to follow cannot be trusted with that
sub-batch any more: its rows are lost, all others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from lazybatch.core.task import Merge, Split, Task
from lazybatch.engine.served import ServedModel
from lazybatch.errors import InvariantError
from lazybatch.executors.base import LoopExecutor

_log = logging.getLogger("lazybatch.engine")


class Holdings:
    """What executors hold, by sub-batch. For the engine thread only.

    forget: a row has left without a result. lost: these rows cannot be gone on with, why, and the time; answers with
    the merges to which their leaving leads. joined: told of every merge, with the time.
    members: by sub-batch, the model and the request ids. later: merges that follow from losses; due after all others.
    """

    def __init__(
        self,
        forget: Callable[[int], object],
        lost: Callable[[Iterable[int], str, BaseException, int], Iterable[Merge]],
        joined: Callable[[Merge, int], None],
    ) -> None:
        self.members: dict[int, tuple[ServedModel, list[int]]] = {}
        self.later: list[Merge] = []
        self._forget = forget
        self._lost = lost
        self._joined = joined

    def open(self, served: ServedModel, task: Task) -> None:
        """A sub-batch begins, or rows join one that stands where they do."""
        if task.joined is None:
            self.members[task.sub_batch] = (served, list(task.opened))
        else:
            self.members[task.sub_batch][1].extend(task.opened)

    def evict(self, sub_batch: int, request_ids: Sequence[int], now: int) -> None:
        """Rows leave without results; the last one ends the sub-batch."""
        served, members = self.members[sub_batch]
        for request_id in request_ids:
            members.remove(request_id)
            self._forget(request_id)
        if not members:
            del self.members[sub_batch]
            discard(served, sub_batch)
            return
        try:
            served.executor.evict(sub_batch, request_ids)
        except BaseException as error:
            self._break(sub_batch, "evicting rows failed", error, now)

    def leave(self, sub_batch: int, request_ids: Sequence[int], now: int) -> dict[int, Any] | None:
        """Rows leave with their results, which are returned; the last one ends the sub-batch.

        An executor that cannot do it gives its error in place of each result. None: the rows were lost before.
        """
        if sub_batch not in self.members:
            return None
        served, members = self.members[sub_batch]
        if len(request_ids) == len(members):
            del self.members[sub_batch]
            try:
                return served.executor.close(sub_batch)
            except BaseException as error:
                discard(served, sub_batch)
                return dict.fromkeys(request_ids, error)
        _take(members, request_ids)
        try:
            return cast(LoopExecutor, served.executor).leave(sub_batch, request_ids)
        except BaseException as error:
            self._break(sub_batch, "taking rows out of a loop failed", error, now)
            return dict.fromkeys(request_ids, error)

    def split(self, split: Split, now: int) -> None:
        """Rows leave a loop before the others and are a sub-batch of their own."""
        if split.source not in self.members:
            return  # lost
        served, members = self.members[split.source]
        try:
            cast(LoopExecutor, served.executor).split(split.source, split.target, split.requests)
        except BaseException as error:
            discard(served, split.target)
            self._break(split.source, "splitting a sub-batch failed", error, now)
            return
        _take(members, split.requests)
        self.members[split.target] = (served, list(split.requests))

    def merge(self, merges: Iterable[Merge], now: int) -> None:
        """Sub-batches join, in order; then those that losses made meet."""
        for merge in merges:
            self._merge(merge, now)
        while self.later:
            self._merge(self.later.pop(0), now)

    def _merge(self, merge: Merge, now: int) -> None:
        if merge.source not in self.members:
            return  # it broke on the way; the target is whole
        if merge.target not in self.members:
            self._break(merge.source, "merging sub-batches failed", InvariantError("the other one is gone"), now)
            return
        served, source = self.members.pop(merge.source)
        self.members[merge.target][1].extend(source)
        self._joined(merge, now)
        try:
            served.executor.merge(merge.target, merge.source)
        except BaseException as error:
            discard(served, merge.source)
            self._break(merge.target, "merging sub-batches failed", error, now)

    def end(self, task: Task) -> None:
        """The task failed: its sub-batch is over, also in the executor."""
        served, _ = self.members.pop(task.sub_batch)
        discard(served, task.sub_batch)
        if task.joined is not None:  # it may have failed before these had joined
            discard(served, task.joined)

    def refuse(self, task: Task) -> None:
        """The task's newcomers could not be gathered: those they were to join are without them."""
        assert task.joined is not None, "they were to join others"
        served, members = self.members[task.sub_batch]
        discard(served, task.joined)
        _take(members, task.opened)

    def clear(self, but: Callable[[str], bool]) -> None:
        """Everything is over. but: models whose sub-batches their executor still needs."""
        for sub_batch, (served, _) in self.members.items():
            if not but(served.spec.graph.model):
                discard(served, sub_batch)
        self.members.clear()
        self.later.clear()

    def _break(self, sub_batch: int, what: str, error: BaseException, now: int) -> None:
        """The executor can no longer be trusted with a parked sub-batch: its rows are lost."""
        served, members = self.members.pop(sub_batch)
        discard(served, sub_batch)
        self.later.extend(self._lost(members, what, error, now))


def discard(served: ServedModel, sub_batch: int) -> None:
    """End a sub-batch in its executor, which may not be able to."""
    try:
        served.executor.discard(sub_batch)
    except BaseException:
        _log.error("the executor of model %r could not discard", served.spec.graph.model, exc_info=True)


def _take(members: list[int], request_ids: Collection[int]) -> None:
    gone = set(request_ids)
    members[:] = [request_id for request_id in members if request_id not in gone]
