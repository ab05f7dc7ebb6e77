"""Streams of several models on one processor.

Owns: `Stream` and `merge`, from arrivals and lengths to requests.
Must not know: how arrivals are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one model: arrivals in order, lengths (empty: 1 each), SLA target, priority.

    Raises `InvalidInput` for arrivals out of order, another number of lengths, or an SLA target that is not positive.
    """

    model: str
    arrivals_ns: Sequence[int]
    lengths: Sequence[int] = ()
    sla_ns: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if self.lengths and len(self.lengths) != len(self.arrivals_ns):
            raise InvalidInput(
                f"stream of {self.model!r}: {len(self.lengths)} lengths for {len(self.arrivals_ns)} arrivals"
            )
        if self.sla_ns is not None and self.sla_ns <= 0:
            raise InvalidInput(f"stream of {self.model!r}: the SLA target must be positive, got {self.sla_ns} ns")
        for number, (earlier, later) in enumerate(pairwise(self.arrivals_ns), start=2):
            if later < earlier:
                raise InvalidInput(f"stream of {self.model!r}: arrival {number} is out of order")


def merge(streams: Sequence[Stream]) -> list[Request]:
    """The requests of all streams in order of arrival, numbered 0, 1, ...; ties go to the stream named first."""
    order = sorted(
        (at_ns, number, position)
        for number, stream in enumerate(streams)
        for position, at_ns in enumerate(stream.arrivals_ns)
    )
    return [_request(request_id, streams[number], position) for request_id, (_, number, position) in enumerate(order)]


def _request(request_id: int, stream: Stream, position: int) -> Request:
    at_ns = stream.arrivals_ns[position]
    return Request(
        request_id,
        stream.model,
        at_ns,
        UNBOUNDED_NS if stream.sla_ns is None else at_ns + stream.sla_ns,
        size=stream.lengths[position] if stream.lengths else 1,
        priority=stream.priority,
    )
