"""What several rows came to, in the caller's order.

Owns: `outcomes`.
Must not know: the engine, models, who waits for the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Any


def outcomes(futures: Sequence[Future[Any]], return_exceptions: bool) -> list[Any]:
    """Results in order; raises the error of the first row that has one, or puts errors in their rows' places.

    futures: all done, or, without return_exceptions, one of them with an error.
    """
    if not return_exceptions:
        for future in futures:
            if future.done() and (error := _error(future)) is not None:
                raise error
    errors = [_error(future) for future in futures]
    return [future.result() if error is None else error for future, error in zip(futures, errors, strict=True)]


def _error(future: Future[Any]) -> BaseException | None:
    return CancelledError() if future.cancelled() else future.exception()
