"""The schedule of a run as a picture: a Chrome trace, to be opened in ui.perfetto.dev or chrome://tracing.

Owns: `TraceWriter`, an observer that writes the Trace Event Format (JSON array of events).
Must not know: the scheduler, the clock, threads, how nodes are run.

What the picture shows: one process per model. Its track "queue" has an instant per arrival; each further track holds
sub-batches, one after the other: a bar per sub-batch from opening to end, and inside it a slice per node run, named
after the node, with rows, padded rows, the reason and, where the policy compared, both costs in its arguments. A parked
sub-batch is the gap between two slices, and marks on the tracks show preemptions and merges. Rows that leave a loop
before others go on as a bar of their own. Each request is an
asynchronous span from its caller's submit to its outcome, with the time in the queue nested inside.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lazybatch.core.graph import NodeGraph
from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Merge, Task
from lazybatch.errors import InvalidInput
from lazybatch.metrics import Observer, Outcome

_log = logging.getLogger("lazybatch.trace")

_QUEUE_TRACK = 0
_FLUSH_EVENTS = 256
_HEAD, _TAIL = b"[\n", b"\n]\n"


class _Process:
    """One model: its process number, its node names, and which of its tracks are taken."""

    def __init__(self, pid: int, nodes: tuple[str, ...]) -> None:
        self.pid = pid
        self.nodes = nodes
        self.tracks = 0
        self.free: list[int] = []

    def node(self, index: int) -> str:
        """The node's name, or its number where no graph was given."""
        return self.nodes[index] if index < len(self.nodes) else f"node {index}"


class _Open:
    """A sub-batch that has not ended: where it is drawn and whose rows it holds."""

    def __init__(self, process: _Process, track: int, requests: Iterable[int]) -> None:
        self.process = process
        self.track = track
        self.requests = set(requests)


class TraceWriter(Observer):
    """Writes what it observes to ``path``; use it as a context manager or call `close`.

    graphs: for the names of nodes. max_events: the file is bounded; beyond that many events the open bars are ended,
    the rest of the run is left out, ``events_left_out`` counts it, and at the end the log says so.

    The file is valid JSON after every flush (each 256 events), so also after the process was killed: the closing
    bracket is rewritten each time. Raises `InvalidInput` if the file cannot be written; where that turns out in the
    middle of a run, the file ends with what was written before, the run goes on, and `close` raises it.
    """

    def __init__(self, path: str | Path, graphs: Iterable[NodeGraph] = (), *, max_events: int = 500_000) -> None:
        if max_events < 1:
            raise InvalidInput(f"max_events must be at least 1, got {max_events}")
        self._nodes = {graph.model: tuple(node.name for node in graph.nodes) for graph in graphs}
        self._max_events = max_events
        self._processes: dict[str, _Process] = {}
        self._open: dict[int, _Open] = {}
        self._waiting: dict[int, Request] = {}
        self._running: dict[int, tuple[Request, int]] = {}
        self._pending: list[str] = []
        self._last_ns = 0
        self._ended = False
        self.events = 0
        self.events_left_out = 0
        self._path = Path(path)
        self._error: OSError | None = None
        if self._path.is_fifo():  # to open one waits for a reader
            raise InvalidInput(
                f"cannot write the trace {str(path)!r}: a pipe cannot be rewritten at its end, a file can"
            )
        try:
            # Unbuffered: what could not be written is not tried again behind our back.
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._file.seek(0)
            self._write(_HEAD + _TAIL)
        except OSError as error:
            self._file.close()
            raise self._unwritable(error) from error
        self._end = len(_HEAD)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # that is what the caller must hear of
            with suppress(InvalidInput):
                self.close()

    def arrived(self, now_ns: int, request: Request) -> None:
        """Mark the arrival and start the request's span, at the time its caller submitted it."""
        if self._skip(now_ns):
            return
        pid = self._process(request.model).pid
        at_ns = request.arrival_ns
        self._waiting[request.id] = request
        self._event("i", "arrival", pid, _QUEUE_TRACK, at_ns, {"request": request.id}, ',"s":"t"')
        arguments = {"priority": request.priority, "size": request.size}
        self._span("b", f"request {request.id}", pid, request.id, at_ns, arguments)
        self._span("b", "queued", pid, request.id, at_ns)

    def opened(self, now_ns: int, task: Task) -> None:
        """Begin a bar for the sub-batch, on a track of its model that is free; or mark the one that the rows join."""
        if self._skip(now_ns):
            return
        process = self._process(task.model)
        if task.joined is None:
            self._open_bar(now_ns, process, task.sub_batch, task.opened)
        else:
            self._join(now_ns, process, task)
        for request_id in task.opened:
            request = self._waiting.pop(request_id, None)
            if request is not None:
                self._span("e", "queued", self._process(request.model).pid, request_id, now_ns)  # maybe a rider's
                self._running[request_id] = (request, task.sub_batch)

    def preempted(self, now_ns: int, task: Task) -> None:
        """Mark the sub-batch that was parked."""
        parked = self._open.get(task.preempted) if task.preempted is not None else None
        if parked is None or self._skip(now_ns):
            return
        arguments: dict[str, object] = {"by": task.sub_batch, "by_model": task.model, "reason": task.reason.value}
        arguments |= _compared(task)
        self._event("i", "preempted", parked.process.pid, parked.track, now_ns, arguments, ',"s":"t"')

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Draw the node's slice; a failed node ends its sub-batch."""
        if self._skip(end_ns):
            return
        sub_batch = self._open.get(task.sub_batch)
        if sub_batch is None:
            return
        arguments: dict[str, object] = {
            "sub_batch": task.sub_batch,
            "node": task.node,
            "rows": task.rows,
            "padded_rows": task.padded_rows,
            "reason": task.reason.value,
            **_compared(task),
        }
        if failed:
            arguments["failed"] = True
        process = sub_batch.process
        duration = f',"dur":{_micros(end_ns - start_ns)}'
        self._event("X", process.node(task.node), process.pid, sub_batch.track, start_ns, arguments, duration)
        if failed:
            self._requeue(end_ns, sub_batch.requests)
            self._close_bar(end_ns, task.sub_batch)

    def refused(self, now_ns: int, task: Task) -> None:
        """Newcomers wait again; the bar they were drawn into goes on."""
        sub_batch = self._open.get(task.sub_batch)
        if sub_batch is None or self._skip(now_ns):
            return
        gone = [request_id for request_id in task.opened if request_id in sub_batch.requests]
        arguments = {"requests": gone}
        self._event("i", "refused", sub_batch.process.pid, sub_batch.track, now_ns, arguments, ',"s":"t"')
        sub_batch.requests.difference_update(gone)
        self._requeue(now_ns, gone)
        if not sub_batch.requests:  # its own rows came before this writer
            self._close_bar(now_ns, task.sub_batch)

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """Begin a bar for rows that leave a loop before others, and mark the one they leave."""
        split = completion.split
        source = self._open.get(task.sub_batch) if split is not None else None
        if split is None or source is None or self._skip(now_ns):
            return
        arguments = {"target": split.target, "requests": list(split.requests)}
        self._event("i", "split", source.process.pid, source.track, now_ns, arguments, ',"s":"t"')
        gone = [request_id for request_id in split.requests if request_id in source.requests]
        source.requests.difference_update(gone)
        self._open_bar(now_ns, source.process, split.target, gone)
        for request_id in gone:
            self._running[request_id] = (self._running[request_id][0], split.target)

    def merged(self, now_ns: int, merge: Merge) -> None:
        """End the bar of the source and mark the target, which holds its rows from now on."""
        if self._skip(now_ns):
            return
        source, target = self._open.get(merge.source), self._open.get(merge.target)
        if source is None or target is None:
            return
        arguments = {"source": merge.source, "target": merge.target, "rows": len(source.requests)}
        self._event("i", "merged", target.process.pid, target.track, now_ns, arguments, ',"s":"t"')
        for request_id in source.requests:
            self._running[request_id] = (self._running[request_id][0], merge.target)
        target.requests |= source.requests
        source.requests.clear()
        self._close_bar(now_ns, merge.source)

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """End the request's span with its outcome; with its last row a sub-batch ends."""
        if self._skip(now_ns):
            return
        pid = self._process(request.model).pid
        if self._waiting.pop(request.id, None) is not None:
            self._span("e", "queued", pid, request.id, now_ns)
        elif request.id in self._running:
            sub_batch_id = self._running.pop(request.id)[1]
            sub_batch = self._open.get(sub_batch_id)
            if sub_batch is not None:
                arguments = {"request": request.id, "outcome": outcome.value}
                self._event("i", "exit", sub_batch.process.pid, sub_batch.track, now_ns, arguments, ',"s":"t"')
                sub_batch.requests.discard(request.id)
                if not sub_batch.requests:
                    self._close_bar(now_ns, sub_batch_id)
        else:
            self._event("i", outcome.value, pid, _QUEUE_TRACK, now_ns, {"request": request.id}, ',"s":"t"')
            return
        late = outcome is Outcome.COMPLETED and now_ns > request.deadline_ns
        arguments = {"outcome": outcome.value, "late": late}
        self._span("e", f"request {request.id}", pid, request.id, now_ns, arguments)

    def close(self) -> None:
        """End what is still open (marked as such), write the rest and close the file; idempotent.

        Raises `InvalidInput` where not all of the run could be written.
        """
        if self._file.closed:
            return
        try:
            self._finish()
            self._flush()
        except OSError:
            pass  # kept, as any earlier one
        finally:
            self._file.close()
        if self._error is not None:
            raise self._unwritable(self._error) from self._error
        if self.events_left_out:
            _log.warning(
                "the trace %r ends %.3f s into the clock, with %d events: it is full, what came later is left out",
                str(self._path),
                self._last_ns / 1e9,
                self.events,
            )

    def _skip(self, now_ns: int) -> bool:
        """Whether the file is full; the first call that finds it so ends everything that is open."""
        if self._ended:
            self.events_left_out += 1
            return True
        self._last_ns = max(self._last_ns, now_ns)
        if self.events < self._max_events:
            return False
        self._finish()
        self._flush()
        self.events_left_out += 1
        return True

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        for request_id, request in self._waiting.items():
            self._span("e", "queued", self._process(request.model).pid, request_id, self._last_ns)
        unfinished = [*self._waiting.values(), *(request for request, _ in self._running.values())]
        for request in unfinished:
            pid = self._process(request.model).pid
            self._span("e", f"request {request.id}", pid, request.id, self._last_ns, {"outcome": "not in this trace"})
        for sub_batch in list(self._open):
            self._close_bar(self._last_ns, sub_batch)
        self._waiting.clear()
        self._running.clear()

    def _requeue(self, now_ns: int, requests: Iterable[int]) -> None:
        """Rows that were in a sub-batch wait again, until they exit or are opened anew."""
        for request_id in requests:
            request, _ = self._running.pop(request_id)
            self._waiting[request_id] = request
            self._span("b", "queued", self._process(request.model).pid, request_id, now_ns)

    def _open_bar(self, now_ns: int, process: _Process, sub_batch_id: int, requests: Sequence[int]) -> None:
        sub_batch = self._open[sub_batch_id] = _Open(process, self._take_track(process), requests)
        arguments = {"requests": list(requests)}
        self._event("B", f"sub-batch {sub_batch_id}", process.pid, sub_batch.track, now_ns, arguments)

    def _join(self, now_ns: int, process: _Process, task: Task) -> None:
        """Newcomers are put straight into a sub-batch that stands where they do."""
        sub_batch = self._open.get(task.sub_batch)
        if sub_batch is None:
            self._open_bar(now_ns, process, task.sub_batch, task.opened)
            return
        sub_batch.requests.update(task.opened)
        arguments = {"requests": list(task.opened)}
        self._event("i", "joined", process.pid, sub_batch.track, now_ns, arguments, ',"s":"t"')

    def _close_bar(self, now_ns: int, sub_batch_id: int) -> None:
        sub_batch = self._open.pop(sub_batch_id)
        sub_batch.process.free.append(sub_batch.track)
        self._event("E", f"sub-batch {sub_batch_id}", sub_batch.process.pid, sub_batch.track, now_ns)

    def _process(self, model: str) -> _Process:
        process = self._processes.get(model)
        if process is None:
            process = self._processes[model] = _Process(len(self._processes) + 1, self._nodes.get(model, ()))
            self._event("M", "process_name", process.pid, _QUEUE_TRACK, 0, {"name": model})
            self._event("M", "thread_name", process.pid, _QUEUE_TRACK, 0, {"name": "queue"})
        return process

    def _take_track(self, process: _Process) -> int:
        if process.free:
            process.free.sort(reverse=True)
            return process.free.pop()
        process.tracks += 1
        self._event("M", "thread_name", process.pid, process.tracks, 0, {"name": f"sub-batches {process.tracks}"})
        self._event("M", "thread_sort_index", process.pid, process.tracks, 0, {"sort_index": process.tracks})
        return process.tracks

    def _span(
        self, phase: str, name: str, pid: int, request_id: int, at_ns: int, arguments: object | None = None
    ) -> None:
        self._event(phase, name, pid, _QUEUE_TRACK, at_ns, arguments, f',"cat":"request","id":"{request_id}"')

    def _event(
        self, phase: str, name: str, pid: int, track: int, at_ns: int, arguments: object | None = None, more: str = ""
    ) -> None:
        # Written by hand: times stay exact decimals, and it costs a third of what a dictionary per event would.
        tail = "" if arguments is None else f',"args":{json.dumps(arguments)}'
        self._pending.append(
            f'{{"ph":"{phase}","name":{json.dumps(name)},"pid":{pid},"tid":{track},"ts":{_micros(at_ns)}{more}{tail}}}'
        )
        self.events += 1
        if len(self._pending) >= _FLUSH_EVENTS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        head = b",\n" if self._end > len(_HEAD) else b""
        block = head + ",\n".join(self._pending).encode()
        self._pending.clear()
        try:
            self._file.seek(self._end)
            self._write(block + _TAIL)
        except OSError as error:
            self._ended = True  # one error, not one per event: the driver goes on without a trace
            self._error = error
            with suppress(OSError):  # the room for it is that of the end that was there before
                self._file.truncate(self._end)
                self._file.seek(self._end)
                self._write(_TAIL)
            raise
        self._end += len(block)

    def _write(self, data: bytes) -> None:
        """All of it: a disk that fills up takes a part first, and fails at the next."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _unwritable(self, error: OSError) -> InvalidInput:
        return InvalidInput(f"cannot write the trace {str(self._path)!r}: {error.strerror or error}")


def _compared(task: Task) -> dict[str, object]:
    """What the policy compared, where it did: costs in row-milliseconds, and predicted late rows."""
    seen = task.comparison
    if seen is None:
        return {}
    return {
        "going_on_row_ms": round(seen.stay_cost / 1e6, 6),
        "starting_row_ms": round(seen.start_cost / 1e6, 6),
        "going_on_late_rows": seen.stay_late,
        "starting_late_rows": seen.start_late,
    }


def _micros(value_ns: int) -> str:
    """Nanoseconds as an exact decimal number of microseconds, the unit of the format."""
    whole, rest = divmod(value_ns, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)
