"""Workloads: when requests come, how long they are, and to which model they go.

Owns: seeded arrival processes (`poisson`, `uniform`, `bursty`, `diurnal`, `phased`), recorded traces (`recorded`,
`load_trace`), lengths (`weighted_lengths`, `lognormal_lengths`, `recorded_lengths`, `resampled`), and `merge`, which
makes one ordered list of requests of several models' streams.
Must not know: who serves the requests, the clock. All times are integer nanoseconds; the same seed gives the same
workload on every machine.
"""

from lazybatch.workload.arrivals import NS_PER_S, bursty, diurnal, phased, poisson, uniform
from lazybatch.workload.lengths import lognormal_lengths, recorded_lengths, resampled, weighted_lengths
from lazybatch.workload.streams import Stream, merge
from lazybatch.workload.traces import Trace, load_trace, recorded

__all__ = [
    "NS_PER_S",
    "Stream",
    "Trace",
    "bursty",
    "diurnal",
    "load_trace",
    "lognormal_lengths",
    "merge",
    "phased",
    "poisson",
    "recorded",
    "recorded_lengths",
    "resampled",
    "uniform",
    "weighted_lengths",
]
