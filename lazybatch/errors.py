"""The whole exception tree.

Owns: every exception class the package raises on purpose, ordered by *who was wrong*.
Must not know: anything else in the package; every other module may import this one.

    LazyBatchError
    ├── InvalidInput        the caller: bad request, bad option, bad file given as an argument (also a ValueError)
    │   ├── TableMismatch   a latency table that belongs to another model, partition or machine
    │   └── SelfWait        a blocking call from one of the batcher's own threads: it would wait for itself
    ├── Overloaded          load: the queue is full, nothing of the call was admitted
    ├── DeadlineExceeded    load: the time limit of the request passed (also a TimeoutError)
    ├── ShuttingDown        life cycle: admission is closed
    ├── ExecutionError      a node or a callable failed for this row
    ├── ModelError          a model cannot be loaded, split or joined; the text says which part and why
    └── InvariantError      us: the scheduler found itself in a state that must not exist
"""


class LazyBatchError(Exception):
    """Base of every exception raised by lazybatch."""


class InvalidInput(LazyBatchError, ValueError):
    """The caller's request, option or file is wrong; the message names the culprit and what was expected."""


class TableMismatch(InvalidInput):
    """The latency table was measured for another model, another partition of it, or another machine."""


class SelfWait(InvalidInput):
    """A blocking call was made from one of the batcher's own threads and would wait for itself for ever."""


class Overloaded(LazyBatchError):
    """The queue has no room for all rows of the call; none of them was admitted."""


class DeadlineExceeded(LazyBatchError, TimeoutError):
    """The request's time limit passed before its answer was ready."""


class ShuttingDown(LazyBatchError):
    """The batcher no longer admits requests."""


class ExecutionError(LazyBatchError):
    """A node or callable failed for this row; the original exception is the ``__cause__`` where there is one."""


class ModelError(LazyBatchError):
    """The model cannot be loaded or split; the message says which tensor or operator is the culprit, and why."""


class InvariantError(LazyBatchError, AssertionError):
    """An internal invariant does not hold: a bug in lazybatch, never the caller's fault."""
