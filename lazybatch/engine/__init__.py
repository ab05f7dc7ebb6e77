"""The live driver: one thread that owns the scheduler and the executors, and the futures callers hold.

Owns: `Engine` and its parts. Must not know: the simulator, frameworks, how a model is loaded.
"""

from lazybatch.engine.clock import Clock, MonotonicClock, SteppedClock
from lazybatch.engine.engine import Engine
from lazybatch.engine.entry import RequestFuture
from lazybatch.engine.served import ServedModel
from lazybatch.engine.stats import Stats

__all__ = ["Clock", "Engine", "MonotonicClock", "RequestFuture", "ServedModel", "Stats", "SteppedClock"]
