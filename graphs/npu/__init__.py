"""The simulated NPU of the LazyBatching paper: a machine by formula, seven networks by their papers' shapes.

Owns: which networks there are. Must not know: how tables are used.

Run from the checkout: `python -m graphs.npu -o profiles/npu-128x128`. Nothing is measured: every table says
"simulated" in its provenance.

Calibration. The paper's single-batch latencies are matched with the machine's nominal figures and one choice of ours:
a convolution's tile waits ``fill_cycles`` = 128 + 128 for the one before (with 0 ResNet-50 would take half the time
and gain nothing from batches, against the paper's Fig. 3), a matrix layer's does not (with 256 for all, GNMT would take
eight times the paper's time). `layer_overhead_cycles` stays 0. The command prints what comes out, with the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphs.npu import bert_base, gnmt, las, mobilenet, resnet50, transformer, vgg16
from graphs.npu.machine import Machine
from graphs.npu.network import Network, latency_table

__all__ = ["NETWORKS", "PAPER_MS", "Machine", "Network", "latency_table"]

NETWORKS: Mapping[str, Callable[[], Network]] = {
    "resnet50": resnet50.build,
    "vgg16": vgg16.build,
    "mobilenet": mobilenet.build,
    "bert-base": bert_base.build,
    "gnmt": gnmt.build,
    "transformer": transformer.build,
    "las": las.build,
}
PAPER_MS: Mapping[str, float] = {"resnet50": 1.1, "gnmt": 7.2, "transformer": 2.4}
"""Single-batch latencies of the paper's Table II; not verified against the printed paper."""
