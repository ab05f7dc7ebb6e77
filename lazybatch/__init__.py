"""lazybatch: node-level preemptive batching for DNN inference.

    model = lazybatch.load("model.onnx")
    with lazybatch.LazyBatcher(model, sla=0.050) as batcher:
        answer = batcher.predict({"x": row})

Importing this needs NumPy only, and is quick: names are imported when they are first used, and runtimes (ONNX Runtime)
when a model is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazybatch.api import AsyncStream, BatchedFunction, LazyBatcher, Stream, batched
    from lazybatch.checking import CheckReport, check
    from lazybatch.config import Level
    from lazybatch.engine import Stats
    from lazybatch.errors import (
        DeadlineExceeded,
        ExecutionError,
        InvalidInput,
        InvariantError,
        LazyBatchError,
        ModelError,
        Overloaded,
        SelfWait,
        ShuttingDown,
        TableMismatch,
    )
    from lazybatch.executors.callable import CallableModel
    from lazybatch.executors.padding.pad import Pad
    from lazybatch.explanation import Explanation
    from lazybatch.lengths import Lengths, load_lengths
    from lazybatch.loading import load
    from lazybatch.metrics import Observer
    from lazybatch.profiler import profile
    from lazybatch.profiles import LatencyTable
    from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage
    from lazybatch.program.saving import save_program

__version__ = "0.1.0"

_HOMES = {
    "lazybatch.api": ("AsyncStream", "BatchedFunction", "LazyBatcher", "Stream", "batched"),
    "lazybatch.checking": ("CheckReport", "check"),
    "lazybatch.config": ("Level",),
    "lazybatch.engine": ("Stats",),
    "lazybatch.errors": (
        "DeadlineExceeded",
        "ExecutionError",
        "InvalidInput",
        "InvariantError",
        "LazyBatchError",
        "ModelError",
        "Overloaded",
        "SelfWait",
        "ShuttingDown",
        "TableMismatch",
    ),
    "lazybatch.executors.callable": ("CallableModel",),
    "lazybatch.executors.padding.pad": ("Pad",),
    "lazybatch.explanation": ("Explanation",),
    "lazybatch.lengths": ("Lengths", "load_lengths"),
    "lazybatch.loading": ("load",),
    "lazybatch.metrics": ("Observer",),
    "lazybatch.profiler": ("profile",),
    "lazybatch.profiles": ("LatencyTable",),
    "lazybatch.program": ("Append", "Carry", "Feed", "Program", "Repeat", "Stage"),
    "lazybatch.program.saving": ("save_program",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Append",
    "AsyncStream",
    "BatchedFunction",
    "CallableModel",
    "Carry",
    "CheckReport",
    "DeadlineExceeded",
    "ExecutionError",
    "Explanation",
    "Feed",
    "InvalidInput",
    "InvariantError",
    "LatencyTable",
    "LazyBatchError",
    "LazyBatcher",
    "Lengths",
    "Level",
    "ModelError",
    "Observer",
    "Overloaded",
    "Pad",
    "Program",
    "Repeat",
    "SelfWait",
    "ShuttingDown",
    "Stage",
    "Stats",
    "Stream",
    "TableMismatch",
    "batched",
    "check",
    "load",
    "load_lengths",
    "profile",
    "save_program",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'lazybatch' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
