"""Delivery: in order, exactly once, by whoever has time, and all of it before the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest

from lazybatch.core.policies import GraphBatching
from lazybatch.core.request import Request
from lazybatch.core.task import Reason, Task
from lazybatch.engine import Engine, delivery
from lazybatch.engine.answers import Ended, Finished
from lazybatch.engine.delivery import Delivery, Due
from lazybatch.engine.entry import Entry, Event, RequestFuture
from lazybatch.engine.listening import Heard, Listener
from lazybatch.errors import ExecutionError, SelfWait
from lazybatch.executors.base import Row
from lazybatch.metrics import Observer, Outcome
from tests.engine.kit import LONG_S, AddChain, Gate, accounts, errors_of, rows, running, served

TASK = Task("m", 0, 0, 1, 1, (), None, Reason.START_IDLE)


def entry(id: int, *events: Event) -> Entry:
    """A row after these events."""
    made = Entry(Request(id, "m", 10), Row(1), None, RequestFuture())
    for event in events:
        made.move(event)
    return made


def finished(id: int) -> Finished:
    """A completed row whose result is its id."""
    return Finished(TASK, "n", [entry(id, Event.START, Event.COMPLETE)], {id: id})


def futures(*answers: Finished) -> list[RequestFuture]:
    """Theirs."""
    return [one.future for each in answers for one in each.entries]


class Threads:
    """Starts threads and remembers them; refuses as often as told."""

    def __init__(self, refuse: int = 0) -> None:
        self.made: list[threading.Thread] = []
        self.refuse = refuse

    def __call__(self, body: Callable[[], None], role: str) -> threading.Thread:
        """Start one."""
        if self.refuse:
            self.refuse -= 1
            raise RuntimeError("can't start new thread")
        self.made.append(threading.Thread(target=body, name=role, daemon=True))
        self.made[-1].start()
        return self.made[-1]


def nothing() -> None:
    """There are no books here."""


def test_whoever_has_time_delivers() -> None:
    """Flushed answers are delivered by this thread, those handed over by another, which starts with the first."""
    threads, by = Threads(), list[str]()
    made = Delivery(threads, nothing)
    answers = [finished(id) for id in range(3)]
    for future in futures(*answers):
        future.add_done_callback(lambda _: by.append(threading.current_thread().name))
    made.hand_over()
    made.add(answers[0])
    assert not answers[0].entries[0].future.done()
    made.flush()
    assert threads.made == []
    made.add(answers[1])
    made.add(answers[2])
    made.hand_over()
    assert made.wait(LONG_S)
    assert by == [threading.current_thread().name, "delivery", "delivery"]
    assert [future.result() for future in futures(*answers)] == [0, 1, 2]
    made.stop()
    threads.made[0].join(LONG_S)
    assert not threads.made[0].is_alive()


def test_the_order_is_kept_when_the_delivery_thread_is_behind() -> None:
    """What this thread could deliver itself queues behind what the other is still at."""
    gate, order = Gate(), list[int]()
    made = Delivery(Threads(), nothing)
    answers = [finished(id) for id in range(4)]
    answers[0].entries[0].future.add_done_callback(gate)
    for future in futures(*answers):
        future.add_done_callback(lambda future: order.append(future.result()))
    made.add(answers[0])
    made.hand_over()
    assert gate.entered.wait(LONG_S)
    for each in answers[1:]:
        made.add(each)
        made.flush()
    assert made.wait(0.0) is False
    assert order == []
    gate.opened.set()
    made.stop()
    assert order == [0, 1, 2, 3]


def test_the_books_come_first_and_say_whose_the_end_was() -> None:
    """Futures are resolved when the books are up to date; a row that somebody else ended is not resolved again."""
    mine, theirs = entry(0, Event.START), entry(1, Event.START)

    def catch_up() -> None:
        theirs.move(Event.CANCEL)
        mine.move(Event.COMPLETE)

    made = Delivery(None, catch_up)
    made.add(Finished(TASK, "n", [theirs, mine], {0: "a", 1: "b"}))
    assert mine.future.result() == "a"
    assert not theirs.future.done()
    assert (mine.row, theirs.row) == (None, None)


def test_a_future_that_cannot_be_resolved_loses_no_other() -> None:
    """Whatever resolving raises is logged, and the next answer is delivered."""
    broken = entry(0, Event.FAIL)
    broken.future.fail = None  # type: ignore[assignment, method-assign]
    made = Delivery(Threads(), nothing)
    other = finished(1)
    made.add(Ended(broken, ExecutionError("no")))
    made.add(other)
    made.hand_over()
    made.stop()
    assert futures(other)[0].result() == 1


def test_an_answer_that_cannot_be_made_costs_its_row_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The row fails, saying so; all others of the batch and of later ones are told, and the end is reached."""

    class Untold(dict[int, int]):
        """Results of which one cannot be had."""

        def get(self, id: int, default: object = None) -> object:  # type: ignore[override]
            """By id."""
            if id == 1:
                raise SystemExit("no")
            return super().get(id, default)

    entries = [entry(id, Event.START, Event.COMPLETE) for id in range(3)]
    gone = entry(1, Event.START, Event.CANCEL)
    made = Delivery(Threads(), nothing)
    made.add(Finished(TASK, "n", [*entries, gone], Untold({0: 0, 2: 2})))
    made.hand_over()
    other = finished(3)
    made.add(other)
    made.hand_over()
    made.stop()
    assert [entries[0].future.result(), entries[2].future.result(), other.entries[0].future.result()] == [0, 2, 3]
    error = entries[1].future.exception()
    assert isinstance(error, ExecutionError)
    assert "cannot be told" in str(error)
    assert isinstance(error.__cause__, SystemExit)
    assert not gone.future.done()
    assert made.backlog == 0
    assert "cannot be told" in caplog.text


def test_a_log_that_fails_costs_nobody_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is to be logged: all answers of the hand-over are told, and later ones, and the end is reached."""
    said = list[object]()

    def fail(*arguments: object, **_: object) -> None:
        said.extend(arguments[:1])
        raise SystemExit("the disk is full")

    class Untold(dict[int, int]):
        """Results that cannot be had."""

        def get(self, id: int, default: object = None) -> object:  # type: ignore[override]
            """By id."""
            raise SystemExit("no")

    monkeypatch.setattr(delivery._log, "error", fail)
    broken, untold = entry(0, Event.FAIL), entry(1, Event.START, Event.COMPLETE)
    broken.future.fail = None  # type: ignore[assignment, method-assign]
    made, others = Delivery(Threads(), fail), [finished(2), finished(3)]
    due: list[Due] = [Ended(broken, ExecutionError("no")), Finished(TASK, "n", [untold], Untold())]
    due += [Heard([(Listener(fail), {})]), others[0]]
    for one in due:
        made.add(one)
    made.hand_over()
    assert made.wait(LONG_S)
    made.add(others[1])
    made.hand_over()
    made.stop()
    assert [future.done() for future in (*futures(*others), untold.future)] == [True] * 3
    assert [future.result() for future in futures(*others)] == [2, 3]
    assert "cannot be told" in str(untold.future.exception())
    books = "the books could not be brought up to date"
    told = [books, "request %d could not be resolved", "%s (request %d)", {}, "a step could not be passed on"]
    assert said == [*told, books]


def test_books_that_cannot_be_kept_are_not_charged_to_the_next_node() -> None:
    """Whoever is about to run a node hands over first, or delivers where no thread is to be had: it raises nothing."""

    def catch_up() -> None:
        raise SystemExit("no books")

    for threads in (Threads(), Threads(refuse=1)):
        made = Delivery(threads, catch_up)
        answers = finished(0)
        made.add(answers)
        made.hand_over()
        made.stop()
        assert futures(answers)[0].result() == 0


def test_without_a_thread_to_be_had_this_one_delivers() -> None:
    """At interpreter exit no thread starts any more: results come all the same, and a later hand-over tries again."""
    threads = Threads(refuse=1)
    made = Delivery(threads, nothing)
    first, second = finished(0), finished(1)
    made.add(first)
    made.hand_over()
    assert futures(first)[0].result() == 0
    made.add(second)
    made.hand_over()
    made.stop()
    assert futures(second)[0].result() == 1
    assert len(threads.made) == 1


def test_a_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hands over waits for room while callbacks are slower than nodes."""
    monkeypatch.setattr(delivery, "_BACKLOG_MAX", 2)
    gate, reached = Gate(), threading.Event()
    made = Delivery(Threads(), nothing)
    answers = [finished(id) for id in range(2)]
    answers[0].entries[0].future.add_done_callback(gate)

    def hand_over_all() -> None:
        for each in answers:
            made.make_room()
            made.add(each)
            made.hand_over()
        reached.set()
        made.make_room()

    thread = threading.Thread(target=hand_over_all)
    thread.start()
    assert reached.wait(LONG_S)
    assert gate.entered.wait(LONG_S)
    assert thread.is_alive()
    gate.opened.set()
    thread.join(LONG_S)
    assert not thread.is_alive()
    made.stop()
    assert all(future.done() for future in futures(*answers))


# -- in the engine -----------------------------------------------------------------------------------------------------


def test_results_arrive_while_the_next_node_runs() -> None:
    """A row's caller is answered, and finds it counted, although the next node has been started and does not end."""
    first, second = Gate(), Gate()
    gates = {1.0: first, 2.0: second}
    model = AddChain(1, before=lambda _, values: gates[float(values[0])]())
    with running(served(model, max_batch_size=1)) as engine:
        (one,) = engine.submit("chain", rows(1))
        assert first.entered.wait(LONG_S)
        (two,) = engine.submit("chain", rows(2))
        first.opened.set()
        assert second.entered.wait(LONG_S)
        assert one.result(LONG_S) == 2.0
        stats = engine.stats()
        assert (stats.completed, stats.in_flight, stats.latency.count) == (1, 1, 1)
        assert two.running()
        assert not two.done()
        second.opened.set()
        assert two.result(LONG_S) == 3.0


class Ends(Observer):
    """Says when so many rows have ended."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.over = threading.Event()

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Count."""
        assert outcome is Outcome.COMPLETED
        assert first_dispatch_ns is not None
        self.left -= 1
        if not self.left:
            self.over.set()


def test_a_slow_callback_keeps_no_node_from_running() -> None:
    """The next node starts and ends while a callback of the last batch still runs; shutdown waits for the callback."""
    held, start, ends = Gate(), Gate(), Ends(2)
    one = served(AddChain(1, before=lambda *_: start()), max_batch_size=1)
    engine = Engine([one], GraphBatching(), observers=[ends])
    made = engine.submit("chain", rows(1))
    made[0].add_done_callback(held)
    assert start.entered.wait(LONG_S)
    made += engine.submit("chain", rows(2))
    start.opened.set()
    assert held.entered.wait(LONG_S)
    assert ends.over.wait(LONG_S)
    assert engine.shutdown(timeout=0.01) is False
    held.opened.set()
    assert engine.shutdown(timeout=LONG_S)
    assert not wait(made, LONG_S).not_done
    assert errors_of(made) == [None, None]
    accounts(engine.stats())


def test_callbacks_on_the_delivery_thread_cannot_wait_for_the_engine() -> None:
    """It is one of the engine's own threads: waiting there is refused, and what a callback raises ends nothing."""
    start, refused, names = Gate(), list[type[BaseException]](), list[str]()
    with running(served(AddChain(1, before=lambda *_: start()), max_batch_size=1)) as engine:
        (one,) = engine.submit("chain", rows(1))
        assert start.entered.wait(LONG_S)
        (two,) = engine.submit("chain", rows(2))
        (three,) = engine.submit("chain", rows(3))

        def call_back(_: object) -> None:
            names.append(threading.current_thread().name)
            for blocking in (engine.shutdown, lambda: engine.submit("chain", rows(4))[0].result()):
                try:
                    blocking()
                except SelfWait as error:
                    refused.append(type(error))
            raise SystemExit("callback")

        one.add_done_callback(call_back)
        start.opened.set()
        assert (one.result(LONG_S), two.result(LONG_S), three.result(LONG_S)) == (2.0, 3.0, 4.0)
    assert refused == [SelfWait, SelfWait]
    assert names == ["lazybatch-delivery"]
