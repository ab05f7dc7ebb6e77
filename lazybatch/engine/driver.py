"""The driver: one turn of the loop, and everything only the engine thread may touch.

Owns: `Driver`: the scheduler and the rows on their way; it carries out what the scheduler decides and says at node
boundaries which futures are due.
Must not know: how callers submit and wait (`engine.engine`), which thread it runs on.

The order of one turn: messages, queue timeouts, one decision, one node. Answers of the node before are delivered when
the decision is made, so that the processor does not wait for callers to wake up: by the delivery thread while the node
runs, or here when nothing runs here. Whatever a node, an executor or a callable raises ends the rows concerned and
nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import NOTHING, Completion, Failure, Merge, Task, Where
from lazybatch.engine.clock import Clock
from lazybatch.engine.delivery import Delivery
from lazybatch.engine.entry import Entry, Event
from lazybatch.engine.holdings import Holdings, discard
from lazybatch.engine.ledger import Ledger
from lazybatch.engine.loops import Stepped, run_node
from lazybatch.engine.mailbox import Arrived, Close, Mailbox, Message, Ran, Refused, Withdrawn
from lazybatch.engine.rows import Rows
from lazybatch.engine.served import ServedModel
from lazybatch.engine.watch import Watch, node_error
from lazybatch.engine.workers import Job, Workers, execute
from lazybatch.errors import InvariantError, LazyBatchError, ShuttingDown
from lazybatch.executors.base import LoopExecutor, Row
from lazybatch.metrics import Observer, Outcome

_log = logging.getLogger("lazybatch.engine")


class Driver:
    """Drives one scheduler. Not thread-safe, on purpose: everything else talks to it through the mailbox."""

    def __init__(
        self,
        served: Sequence[ServedModel],
        make_scheduler: Callable[[], Scheduler],
        ledger: Ledger,
        mailbox: Mailbox,
        clock: Clock,
        observers: Iterable[Observer],
        workers: Workers | None,
        delivery: Delivery,
    ) -> None:
        self._served = {one.spec.graph.model: one for one in served}
        self._make_scheduler = make_scheduler
        self._ledger = ledger
        self._mailbox = mailbox
        self._clock = clock
        self._watch = Watch(observers)
        self._watched = len(self._watch) > 0
        self._workers = workers
        self._delivery = delivery
        self._rows = Rows(ledger, self._watch, delivery)
        self._held = Holdings(self._rows.forget, self._lose, self._joined)
        self._outstanding = 0
        self._generation = 0
        self._closing = self._aborting = False
        self._policy_failures = 0
        self.finished = False
        self.scheduler = make_scheduler()

    # -- one turn ------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Handle messages, decide, run one node. False when there was nothing to run (then wait, or stop)."""
        if self._delivery.backlog:
            self._delivery.make_room()
        now = self._clock.now_ns()
        # Only what is there now: clients that post all the time must not keep us from running nodes.
        for _ in range(len(self._mailbox)):
            self._handle(self._mailbox.next(), now)
        scheduler = self.scheduler
        if scheduler.timed:
            for gone in scheduler.expire(now):
                self._rows.expire(gone, now)
        task = scheduler.schedule(now)
        if scheduler.counts.policy_failures != self._policy_failures:
            self._policy_failed()
        if task is not None:
            self._start(task, now)
            return True
        self._delivery.flush()
        self._ledger.catch_up()
        self._check_end()
        return False

    def next_wakeup_ns(self) -> int | None:
        """When to take the next turn at the latest, after `turn` returned False; None: when a message comes."""
        return self.scheduler.next_wakeup()

    def _policy_failed(self) -> None:
        """Count what graph batching decided in the policy's place; say it once."""
        failures = self.scheduler.counts.policy_failures
        if not self._ledger.policy_failures:
            error = self.scheduler.policy_error
            _log.warning("the policy failed, graph batching decides in its place (said once)", exc_info=error)
        self._ledger.policy_failures += failures - self._policy_failures
        self._policy_failures = failures

    def _check_end(self) -> None:
        if self._outstanding:
            return
        if self.scheduler.idle:
            if self._closing and not len(self._mailbox):
                self.end()
        elif self._closing and self.scheduler.next_wakeup() is None:
            raise InvariantError("the policy waits for arrivals although no further row can come")

    def _handle(self, message: Message, now: int) -> None:
        match message:
            case Arrived():
                self._arrive(message.entries, now)
            case Withdrawn():
                self._withdraw(message.entry, message.outcome, now)
            case Ran():
                self._ran(message)
            case Close():
                self._closing = True
                self.scheduler.drain()
                if not message.drain:
                    self._aborting = True
                    self._abort(now)
            case Refused():
                for request in message.requests:
                    self._watch.exited(now, request, Outcome.REJECTED, None)

    def _arrive(self, entries: Iterable[Entry], now: int) -> None:
        watched, entries_by_id = self._watch.arrivals, self._rows.entries
        for entry in entries:
            request = entry.request
            entries_by_id[request.id] = entry
            if watched:
                self._watch.arrived(now, request)
            if not entry.waiting:
                self._rows.forget(request.id)
                continue
            try:
                self.scheduler.add(request)
            except LazyBatchError as error:  # admission was exact, so this is ours; the row must not be lost over it
                _log.error("an admitted row was refused by the scheduler", exc_info=True)
                self._rows.fail(entry, "the scheduler refused an admitted row", error, now)

    # -- running nodes -------------------------------------------------------------------------------------------

    def _start(self, task: Task, now: int) -> None:
        served = self._served[task.model]
        rows = None
        if task.opened:
            by_id = self._rows.entries
            entries = [by_id[request_id] for request_id in task.opened]
            self._ledger.opened(task, entries, now)
            self._held.open(served, task)
            rows = {entry.request.id: entry.row for entry in entries if entry.row is not None}
            self._watch.opened(now, task)
            if task.preempted is not None:
                self._watch.preempted(now, task)
        if served.ends:
            self._step(task, served, rows)
            return
        job = Job(task, served.executor, rows, task.node == served.last, self._generation)
        if self._workers is not None and served.pooled:
            self._outstanding += 1
            self._workers.put(job)
            return
        start_ns = self._clock.now_ns()
        # Not before the rows are gathered: copying lets go of the interpreter, and callers that wake up would take it.
        results, error = execute(job, self._delivery.hand_over if self._delivery.due else None)
        self._settle(task, start_ns, self._clock.now_ns(), results, error)
        if self.scheduler.idle and not len(self._mailbox):
            self._delivery.flush()

    def _ran(self, ran: Ran) -> None:
        self._outstanding -= 1
        if ran.generation == self._generation:
            self._settle(ran.task, ran.start_ns, ran.end_ns, ran.results, ran.error)
        elif ran.results is None:
            discard(self._served[ran.task.model], ran.task.sub_batch)

    def _settle(
        self, task: Task, start_ns: int, end_ns: int, results: dict[int, Any] | None, error: BaseException | None
    ) -> None:
        """A node boundary: tell the scheduler, then do what follows from it."""
        failed = error is not None
        self._ledger.dispatched(task, start_ns, end_ns, failed)
        if self._watched:
            self._watch.dispatched(start_ns, end_ns, task, failed)
        if error is not None:
            self._failed(task, error, end_ns)
            return
        done = self.scheduler.complete(task, end_ns)
        if results is not None:
            del self._held.members[task.sub_batch]
            for request_id in done.evicted:
                self._rows.forget(request_id)
            self._rows.finish(task, self._node_name(task), done.finished, results, end_ns)
        elif done.evicted:
            self._held.evict(task.sub_batch, done.evicted, end_ns)
        if done.merges or self._held.later:
            self._held.merge(done.merges, end_ns)

    def _failed(self, task: Task, error: BaseException, now: int) -> None:
        self._held.end(task)
        failure = self.scheduler.fail(task, now)
        self._held.merge(failure.merges, now)
        for request_id in failure.evicted:
            self._rows.forget(request_id)
        self._ended_by(failure, task, error, now)

    def _refused(self, task: Task, error: BaseException, now: int) -> None:
        """Newcomers could not be gathered; those they were to join know nothing of it."""
        self._held.refuse(task)
        failure = self.scheduler.expel(task, now)
        inside = [request_id for request_id in failure.evicted if request_id not in task.opened]
        if inside:
            self._held.evict(task.sub_batch, inside, now)
        for request_id in failure.evicted:
            if request_id in task.opened:
                self._rows.forget(request_id)
        self._held.merge(failure.merges, now)
        self._ended_by(failure, task, error, now)

    def _ended_by(self, failure: Failure, task: Task, error: BaseException, now: int) -> None:
        for request_id in failure.retried:
            self._rows.retry(request_id, now)
        if failure.retried and self._aborting:
            self._abort(now)
        for request_id in failure.failed:
            cause = node_error(task, self._node_name(task), error)
            self._rows.end(self._rows.forget(request_id), Event.FAIL, cause, now)

    def _on_worker(self, model: str) -> bool:
        return self._workers is not None and self._served[model].pooled

    def _node_name(self, task: Task) -> str:
        return self._served[task.model].spec.graph.nodes[task.node].name

    # -- nodes of graphs with loops ------------------------------------------------------------------------------

    def _step(self, task: Task, served: ServedModel, rows: Mapping[int, Row] | None) -> None:
        """Run one node, then do what follows from it. Results are fetched when it is known who leaves.

        Most steps lead to nothing, and a model that has just read its weights has left none of this in the processor's
        caches: what has no part in such a step is not called.
        """
        known, delivery = self._rows, self._delivery
        if rows is not None:
            known.started(rows)
        ends = task.node in served.ends
        listen = ends and known.listened and known.listened_to(self._held.members[task.sub_batch][1])
        executor = cast(LoopExecutor, served.executor)
        start_ns = self._clock.now_ns()
        ran = run_node(task, executor, rows, listen, delivery.hand_over if delivery.due else None)
        end_ns = self._clock.now_ns()
        if ran.error is not None:
            self._not_run(task, ran, start_ns, end_ns)
        else:
            self._ledger.dispatched(task, start_ns, end_ns, False)
            if self._watched:
                self._watch.dispatched(start_ns, end_ns, task)
            completion = self.scheduler.complete(task, end_ns, ran.done)
            if listen:
                for entry in known.hear(ran.emitted, end_ns):
                    self._mailbox.post(Withdrawn(entry, Outcome.FAILED))
            if ends:
                self._ledger.stepped(task, completion, end_ns)
                if self._watched:
                    self._watch.stepped(end_ns, task, completion)
            if completion is NOTHING and not self._held.later:
                return
            self._follow(task, completion, end_ns)
        if self.scheduler.idle and not len(self._mailbox):
            delivery.flush()

    def _not_run(self, task: Task, ran: Stepped, start_ns: int, end_ns: int) -> None:
        """The node raised, or those who were to be let in could not be."""
        assert ran.error is not None, "it raised"
        if ran.refused:
            self._watch.refused(end_ns, task)
            self._refused(task, ran.error, end_ns)
        else:
            self._ledger.dispatched(task, start_ns, end_ns, True)
            self._watch.dispatched(start_ns, end_ns, task, True)
            self._failed(task, ran.error, end_ns)

    def _follow(self, task: Task, completion: Completion, now: int) -> None:
        """What the scheduler says of the rows, in the order in which it says it."""
        if completion.evicted:
            self._held.evict(task.sub_batch, completion.evicted, now)
        if completion.finished:
            results = self._held.leave(task.sub_batch, completion.finished, now)
            if results is not None:
                self._rows.finish(task, self._node_name(task), completion.finished, results, now)
        if completion.split is not None:
            self._held.split(completion.split, now)
        self._held.merge(completion.merges, now)

    # -- rows that leave early ------------------------------------------------------------------------------------

    def _withdraw(self, entry: Entry, outcome: Outcome, now: int) -> None:
        """A row has ended, and is told so by whoever ended it: take it out of queue or sub-batch, unless it is out."""
        self._watch.ended(entry, now, outcome)
        self._remove(entry.request.id, now)

    def _remove(self, request_id: int, now: int) -> None:
        cancellation = self.scheduler.cancel(request_id, now)
        if cancellation.where in (Where.UNKNOWN, Where.RUNNING):
            return  # finished and forgotten, or to be reported as evicted when its node ends
        if cancellation.where is Where.PARKED and cancellation.sub_batch is not None:
            self._held.evict(cancellation.sub_batch, (request_id,), now)
        else:
            self._rows.forget(request_id)
        self._held.merge(cancellation.merges, now)

    def _joined(self, merge: Merge, now: int) -> None:
        self._ledger.merged(merge, now)
        if self._watched:
            self._watch.merged(now, merge)

    def _lose(self, request_ids: Iterable[int], what: str, error: BaseException, now: int) -> list[Merge]:
        """The executor can no longer be trusted with these rows: they fail, all others go on."""
        merges: list[Merge] = []
        for request_id in request_ids:
            merges += self.scheduler.cancel(request_id, now).merges
            self._rows.fail(self._rows.entries[request_id], what, error, now)
        return merges

    # -- ends ----------------------------------------------------------------------------------------------------

    def _abort(self, now: int) -> None:
        """Shutdown without drain: everything that is not being run by a worker right now ends here."""
        for entry in list(self._rows.entries.values()):
            on_worker = self._on_worker(entry.request.model) and self._ledger.running(entry)
            if on_worker or entry.request.id not in self._rows.entries:
                continue
            self._rows.end(entry, Event.CANCEL, ShuttingDown("the batcher was shut down before this row ran"), now)
            self._remove(entry.request.id, now)

    def reset(self, error: BaseException) -> None:
        """The scheduler failed us: end every accepted row, and start with a fresh one so that later rows are served."""
        now = self._clock.now_ns()
        self._generation += 1
        self._held.clear(but=self._on_worker)  # a worker's sub-batch is ended when it comes back
        self._rows.entries.clear()
        for entry in self._ledger.open_entries():
            self._rows.fail(entry, "the scheduler failed", error, now)
        self.scheduler = self._make_scheduler()
        self._policy_failures = 0
        if self._closing:
            self.scheduler.drain()

    def end(self) -> None:
        """Free the models, once; whatever is still in their executors, after a failure, goes with them."""
        if self.finished:
            return
        self.finished = True
        self._held.clear(but=self._on_worker)
        for served in self._served.values():
            try:
                served.executor.shutdown()
            except BaseException:
                _log.error("executor of %r failed to shut down", served.spec.graph.model, exc_info=True)
