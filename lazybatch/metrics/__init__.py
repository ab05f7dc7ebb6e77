"""Watching a run: hooks that both drivers call, and what is usually wanted from them.

Owns: the public names. Must not know: the scheduler, drivers; the core never sees any of this.

All times are integer nanoseconds on the driver's clock (monotonic in the engine, virtual in the simulator).
"""

from lazybatch.metrics.histogram import Histogram, Summary, latency_summary
from lazybatch.metrics.meter import Meter, ModelStats
from lazybatch.metrics.observer import Observer, Observers, Outcome

__all__ = ["Histogram", "Meter", "ModelStats", "Observer", "Observers", "Outcome", "Summary", "latency_summary"]
