"""Rows on their way: what the engine thread knows of each by its request id, and how they end.

Owns: `Rows`: the entries of accepted rows, their ends (books, observers, answers), and who listens to them.
Must not know: the scheduler, executors, sub-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lazybatch.core.task import Expired, Task
from lazybatch.engine.answers import Ended, Finished
from lazybatch.engine.delivery import Delivery
from lazybatch.engine.entry import Entry, Event, State
from lazybatch.engine.ledger import OUTCOMES, Ledger
from lazybatch.engine.listening import Heard, Listener, Step
from lazybatch.engine.loops import Emitted
from lazybatch.engine.watch import Watch, engine_error
from lazybatch.errors import DeadlineExceeded, ExecutionError, LazyBatchError


class Rows:
    """Accepted rows that the scheduler has not let go of. For the engine thread only.

    entries: by request id. A row may have ended here already (a caller cancelled it) and still be in a sub-batch.
    listened: whether anybody ever listened to a row.
    """

    def __init__(self, ledger: Ledger, watch: Watch, delivery: Delivery) -> None:
        self.entries: dict[int, Entry] = {}
        self._ledger = ledger
        self._watch = watch
        self._delivery = delivery
        self.listened = False

    def forget(self, request_id: int) -> Entry:
        """The scheduler no longer knows the row; neither shall we, and its inputs can go."""
        entry = self.entries.pop(request_id)
        entry.row = None
        return entry

    # -- ends ----------------------------------------------------------------------------------------------------

    def finish(self, task: Task, node: str, finished: Iterable[int], results: Mapping[int, Any], now: int) -> None:
        """The last node of these rows has run, in ``task``; what the executor returned for them.

        Those that `hear` has failed in the same step have been told so.
        """
        popped = [self.entries.pop(request_id) for request_id in finished]
        entries = [entry for entry in popped if entry.state is not State.FAILED]
        if self.listened:
            short = {one.request.id: error for one in entries if (error := _cut_short(one)) is not None}
            results = {**results, **short} if short else results
        ended = Finished(task, node, entries, results)
        self._ledger.finished(ended, now)
        if self._watch.ends:
            self._ledger.catch_up()
            for entry, event in ended.ends():
                if entry.state is (State.COMPLETED if event is Event.COMPLETE else State.FAILED):
                    self._watch.ended(entry, now, OUTCOMES[entry.state])
        self._delivery.add(ended)

    def end(self, entry: Entry, event: Event, error: LazyBatchError, now: int) -> None:
        """A row ends without a result, unless it had ended before."""
        if self._ledger.move(entry, event, now):
            self._watch.ended(entry, now, OUTCOMES[entry.state])
            self._delivery.add(Ended(entry, error))

    def fail(self, entry: Entry, text: str, cause: BaseException, now: int) -> None:
        """A row ends because the engine could not go on with it; it is forgotten."""
        self.entries.pop(entry.request.id, None)
        entry.row = None
        self.end(entry, Event.FAIL, engine_error(f"model {entry.request.model!r}: {text}", cause), now)

    def expire(self, gone: Expired, now: int) -> None:
        """A row has waited too long."""
        entry = self.forget(gone.request)
        request = entry.request
        waited = f"model {request.model!r}: waited {(now - request.arrival_ns) / 1e6:.1f} ms in the queue"
        if not gone.hopeless:
            self.end(entry, Event.EXPIRE, DeadlineExceeded(f"{waited}, its level's limit"), now)
            return
        target_ms = (request.deadline_ns - request.arrival_ns) / 1e6
        text = f"{waited} and could no longer be done {target_ms:.1f} ms after its submission; late rows are dropped"
        self.end(entry, Event.DROP, DeadlineExceeded(text), now)

    def retry(self, request_id: int, now: int) -> None:
        """A row goes back to the queue, to be run again from its start; whoever listens hears no step twice.

        Where it then makes other steps than were heard, it fails; see `hear` and `finish`.
        """
        entry = self.entries[request_id]
        if entry.listener is not None:
            entry.listener.rewind()
        self._ledger.move(entry, Event.RETRY, now)

    # -- those who listen ----------------------------------------------------------------------------------------

    def started(self, request_ids: Iterable[int]) -> None:
        """These rows enter a graph with loops."""
        self.listened = self.listened or any(self.entries[request_id].listener for request_id in request_ids)

    def listened_to(self, request_ids: Iterable[int]) -> bool:
        """Whether anybody listens to one of these rows. Costs nothing until somebody ever has."""
        entries = self.entries
        return self.listened and any(entries[request_id].listener for request_id in request_ids)

    def hear(self, emitted: Emitted, now: int) -> list[Entry]:
        """Steps are due for those who listen. Rows that fail, since they go another way than was heard, are returned:
        they are still in their sub-batch."""
        heard: list[tuple[Listener, Step]] = []
        strayed: list[Entry] = []
        for request_id, step in emitted.items():
            entry = self.entries[request_id]
            listener = entry.listener
            if listener is None:
                continue
            if listener.hears(step):
                heard.append((listener, step))
            elif listener.strayed and self._ledger.move(entry, Event.FAIL, now):
                self._delivery.add(Ended(entry, _strayed(entry, f"made another step {listener.at} than was heard")))
                strayed.append(entry)
        if heard:
            self._delivery.add(Heard(heard))
        return strayed


def _cut_short(entry: Entry) -> ExecutionError | None:
    listener = entry.listener
    if listener is None or not listener.short:
        return None
    return _strayed(entry, f"was done after {listener.at} steps, fewer than were heard")


def _strayed(entry: Entry, how: str) -> ExecutionError:
    return ExecutionError(
        f"model {entry.request.model!r}: the row was run again, since its batch had failed, and {how}: its stream "
        "cannot go on. Steps must depend on a row's inputs alone"
    )
