"""The mailbox: in order, never blocking the poster."""

from __future__ import annotations

import gc
import threading

from lazybatch.engine.mailbox import Close, Mailbox


def test_messages_come_in_the_order_they_were_posted() -> None:
    """First in, first out, also for a message that `wait` has already seen."""
    mailbox = Mailbox()
    first, second, third = Close(True), Close(False), Close(True)
    mailbox.post(first)
    mailbox.wait(None)
    mailbox.post(second)
    mailbox.post(third)
    assert len(mailbox) == 3
    assert [mailbox.next() for _ in range(3)] == [first, second, third]
    assert len(mailbox) == 0


def test_wait_ends_with_a_message_or_the_timeout() -> None:
    """An empty mailbox is waited for until the timeout, or until another thread posts."""
    mailbox = Mailbox()
    mailbox.wait(0.001)
    assert len(mailbox) == 0
    poster = threading.Thread(target=mailbox.post, args=(Close(True),))
    poster.start()
    mailbox.wait(None)
    poster.join()
    assert mailbox.next() == Close(True)


def test_a_finalizer_may_post_while_someone_posts() -> None:
    """Garbage collection can run a finalizer anywhere, so posting from one must not deadlock."""
    mailbox = Mailbox()

    class Leaving:
        def __del__(self) -> None:
            mailbox.post(Close(False))

    for _ in range(100):
        cycle = [Leaving()]
        cycle.append(cycle)  # type: ignore[arg-type]
        del cycle
        mailbox.post(Close(True))
    gc.collect()
    assert len(mailbox) == 200
