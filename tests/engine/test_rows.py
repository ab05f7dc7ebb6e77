"""Rows: known by their ids until they end, each told once how."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.request import Request
from lazybatch.core.task import Expired, Reason, Task
from lazybatch.engine.delivery import Delivery
from lazybatch.engine.entry import Entry, Event, RequestFuture, State
from lazybatch.engine.ledger import Ledger
from lazybatch.engine.listening import Listener
from lazybatch.engine.rows import Rows
from lazybatch.engine.watch import Watch
from lazybatch.errors import DeadlineExceeded, ExecutionError, ShuttingDown
from lazybatch.executors.base import Row
from lazybatch.metrics import Observer, Outcome

TASK = Task("m", 0, 0, 2, 2, (0, 1), None, Reason.START_IDLE)


class Ends(Observer):
    """How rows ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Outcome]] = []

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Note."""
        self.seen.append((request.id, outcome))


class Book:
    """Two rows that run, of which somebody listens to the second."""

    def __init__(self) -> None:
        self.ledger = Ledger(["m"])
        self.ends = Ends()
        self.rows = Rows(self.ledger, Watch([self.ends]), Delivery(None, self.ledger.catch_up))
        self.heard: list[Any] = []
        self.entries = [Entry(Request(k, "m", 5_000_000, 9_000_000), Row(k), None, RequestFuture()) for k in (0, 1)]
        self.entries[1].listener = Listener(self.heard.append)
        self.ledger.admit(self.entries)
        self.rows.entries.update(enumerate(self.entries))
        self.ledger.opened(TASK, self.entries, 6_000_000)


@pytest.fixture
def book() -> Book:
    """Two rows."""
    return Book()


def test_finishing(book: Book) -> None:
    """Results and errors reach their futures, observers are told, and the rows are forgotten with their inputs."""
    book.rows.finish(TASK, "node", (0, 1), {0: "answer", 1: ValueError("no")}, 7_000_000)
    assert book.entries[0].future.result() == "answer"
    assert isinstance(book.entries[1].future.exception(), ExecutionError)
    assert book.ends.seen == [(0, Outcome.COMPLETED), (1, Outcome.FAILED)]
    assert book.rows.entries == {}
    assert [entry.row for entry in book.entries] == [None, None]


def test_an_end_is_told_once(book: Book) -> None:
    """A row that has ended stays as it is, whatever else would end it."""
    book.rows.end(book.entries[0], Event.CANCEL, ShuttingDown("first"), 7_000_000)
    book.rows.fail(book.entries[0], "second", ValueError("no"), 7_000_001)
    book.rows.finish(TASK, "node", (1,), {1: "answer"}, 7_000_002)
    book.rows.end(book.entries[1], Event.CANCEL, ShuttingDown("late"), 7_000_003)
    assert isinstance(book.entries[0].future.exception(), ShuttingDown)
    assert book.entries[1].future.result() == "answer"
    assert book.ends.seen == [(0, Outcome.CANCELLED), (1, Outcome.COMPLETED)]


def test_failing_says_why(book: Book) -> None:
    """The model, what could not be done, and the cause."""
    book.rows.fail(book.entries[0], "merging sub-batches failed", ValueError("no"), 7_000_000)
    error = book.entries[0].future.exception()
    assert str(error) == "model 'm': merging sub-batches failed: ValueError: no"
    assert book.entries[0].state is State.FAILED


@pytest.mark.parametrize(
    ("hopeless", "state", "text"),
    [
        (False, State.EXPIRED, "model 'm': waited 2.0 ms in the queue, its level's limit"),
        (True, State.DROPPED, "could no longer be done 4.0 ms after its submission; late rows are dropped"),
    ],
)
def test_expiring(book: Book, hopeless: bool, state: State, text: str) -> None:
    """A queue timeout and a hopeless row, each in its own words."""
    waiting = Entry(Request(7, "m", 5_000_000, 9_000_000), Row(7), None, RequestFuture())
    book.ledger.admit([waiting])
    book.rows.entries[7] = waiting
    book.rows.expire(Expired(7, hopeless), 7_000_000)
    error = waiting.future.exception()
    assert isinstance(error, DeadlineExceeded)
    assert text in str(error)
    assert (waiting.state, waiting.row) == (state, None)


def test_listening(book: Book) -> None:
    """Nobody is looked for before somebody listens; steps go to those who do, and none is heard twice."""
    assert not book.rows.listened_to([0, 1]), "nobody has entered yet"
    book.rows.started([0, 1])
    assert (book.rows.listened_to([0, 1]), book.rows.listened_to([0])) == (True, False)
    book.rows.hear({0: {"x": 1}}, 7_000_000)
    book.rows.hear({0: {"x": 1}, 1: {"x": 2}}, 7_000_000)
    book.rows.retry(1, 7_000_000)
    assert book.entries[1].state is State.RETRYING
    book.rows.retry(0, 7_000_000)
    assert book.rows.hear({1: {"x": 2}}, 7_000_000) == []
    assert book.rows.hear({1: {"x": 3}}, 7_000_000) == []
    assert book.heard == [{"x": 2}, {"x": 3}]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_row_that_strays_is_told_once_and_named(book: Book, cancelled: bool) -> None:
    """It fails at the first other step, and whoever has to take it out of its sub-batch hears of it, once; a row that
    had ended before stays as it is."""
    book.rows.started([0, 1])
    book.rows.hear({1: {"x": 2}}, 7_000_000)
    book.rows.retry(1, 7_000_000)
    if cancelled:
        book.rows.end(book.entries[1], Event.CANCEL, ShuttingDown("first"), 7_000_000)
    assert book.rows.hear({1: {"x": 3}}, 7_000_000) == ([] if cancelled else [book.entries[1]])
    assert book.rows.hear({1: {"x": 4}}, 7_000_000) == []
    assert book.entries[1].state is (State.CANCELLED if cancelled else State.FAILED)
    assert isinstance(book.entries[1].future.exception(), ShuttingDown if cancelled else ExecutionError)
    assert book.heard == [{"x": 2}]
    assert 1 in book.rows.entries, "it is in a sub-batch"


def test_a_row_that_is_done_sooner_than_was_heard_fails(book: Book) -> None:
    """Its result is not that of the steps; its mates have theirs."""
    book.rows.started([0, 1])
    for step in range(2):
        book.rows.hear({1: {"x": step}}, 7_000_000)
    for id in (0, 1):
        book.rows.retry(id, 7_000_000)
    book.rows.hear({1: {"x": 0}}, 7_000_000)
    book.ledger.opened(TASK, book.entries, 7_000_000)
    book.rows.finish(TASK, "node", (0, 1), {0: "answer", 1: "another"}, 7_000_001)
    assert book.entries[0].future.result() == "answer"
    assert "was done after 1 steps, fewer than were heard" in str(book.entries[1].future.exception())


def test_a_row_that_strays_in_its_last_step_is_told_once(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    """Its last node has run in the step it failed in: it is forgotten, and nothing else is said of it; its mate has its
    result."""
    book.rows.started([0, 1])
    for step in range(2):
        book.rows.hear({1: {"x": step}}, 7_000_000)
    for id in (0, 1):
        book.rows.retry(id, 7_000_000)
    book.ledger.opened(TASK, book.entries, 7_000_000)
    assert book.rows.hear({1: {"x": 7}}, 7_000_000) == [book.entries[1]]
    book.rows.finish(TASK, "node", (0, 1), {0: "answer", 1: "another"}, 7_000_000)
    assert book.entries[0].future.result() == "answer"
    assert "made another step 1 than was heard" in str(book.entries[1].future.exception())
    assert book.ends.seen == [(0, Outcome.COMPLETED)], "of the other one its withdrawal is told"
    assert book.rows.entries == {}
    assert caplog.text == ""
