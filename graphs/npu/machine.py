"""A simulated accelerator: how many cycles a layer takes, by formula.

Owns: `Machine` (its parameters) and `Demand` (what a layer asks of it). Nothing here is measured.
Must not know: networks, batches, latency tables.

The machine is the inference NPU of the LazyBatching paper, after PREMA (HPCA 2020) and the first TPU (ISCA 2017): one
128 x 128 systolic array at 700 MHz, one multiply-accumulate per element and cycle; SRAM of 8 MiB for activations and
4 MiB for weights; memory of 360 GB/s with a latency of 100 cycles. Values are 8 bits wide, sums 32. A vector unit
with one lane per column does what is not a matrix product. Formulas (cycles; rows x inner x columns is a product):

    tiles          = ceil(inner / 128) * ceil(columns / 128)               weights latched in the array, one per element
    convolution    = tiles * (rows + fill)                                 rows = batch * output pixels (im2col)
    matrix         = tiles * max(rows, tile bytes / memory bytes per cycle)
    depthwise      = min(ceil(channels / floor(128 / taps)) * (rows + fill), vector unit)
    vector unit    = operations / lanes
    memory         = (weights not resident + activations beyond their SRAM) / bytes per cycle
    layer          = max(array + vector, memory) + latency

A convolution's tile waits until the windows of the one before have left the array, because both accumulate into the
same outputs: ``fill`` cycles, by default one pass along its rows and columns. The tiles of a matrix layer are
double-buffered and follow each other as fast as weights arrive: at few rows the layer is bound by memory, the case
that batching helps most. The depthwise formula packs as many channels as fit into one tile, on its block diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Demand:
    """What one layer asks for, at one batch size.

    array_cycles, vector_cycles: work of the two units, one after the other. weight_bytes: read from memory.
    activation_bytes: what the layer reads and writes besides its weights.
    """

    array_cycles: float
    vector_cycles: float
    weight_bytes: float
    activation_bytes: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Parameters of the accelerator. Two are ours: fill_cycles and layer_overhead_cycles; see `graphs.npu`."""

    rows: int = 128
    columns: int = 128
    clock_hz: float = 700e6
    activation_sram_bytes: int = 8 << 20
    weight_sram_bytes: int = 4 << 20
    memory_bytes_per_s: float = 360e9
    memory_latency_cycles: int = 100
    value_bytes: int = 1
    fill_cycles: int = 256
    layer_overhead_cycles: int = 0

    @property
    def bytes_per_cycle(self) -> float:
        """What the memory delivers in one cycle."""
        return self.memory_bytes_per_s / self.clock_hz

    def tiles(self, inner: int, columns: int) -> int:
        """Weight tiles of a product."""
        return ceil(inner / self.rows) * ceil(columns / self.columns)

    def convolution_cycles(self, rows: int, inner: int, columns: int) -> float:
        """A convolution as a product: ``rows`` output pixels of all images."""
        return self.tiles(inner, columns) * (rows + self.fill_cycles)

    def matrix_cycles(self, rows: int, inner: int, columns: int) -> float:
        """A product whose tiles follow each other without a gap."""
        tile_load_cycles = self.rows * self.columns * self.value_bytes / self.bytes_per_cycle
        return self.tiles(inner, columns) * max(rows, tile_load_cycles)

    def depthwise_array_cycles(self, rows: int, channels: int, taps: int) -> float:
        """A depthwise convolution on the array: blocks of taps x 1 on the diagonal of each tile."""
        per_tile = min(self.rows // taps, self.columns)
        return ceil(channels / per_tile) * (rows + self.fill_cycles)

    def vector_cycles(self, operations: float) -> float:
        """Operations on the vector unit, one lane per column."""
        return operations / self.columns

    def spilled_bytes(self, activation_bytes: float) -> float:
        """Activations that do not fit the SRAM and travel through memory."""
        return max(0.0, activation_bytes - self.activation_sram_bytes)

    def layer_cycles(self, demand: Demand) -> float:
        """Time of one layer: computing or memory, whichever is longer, and the latency before the first byte."""
        traffic = demand.weight_bytes + self.spilled_bytes(demand.activation_bytes)
        busy = max(demand.array_cycles + demand.vector_cycles, traffic / self.bytes_per_cycle)
        return busy + self.memory_latency_cycles + self.layer_overhead_cycles

    def nanoseconds(self, cycles: float) -> int:
        """Whole nanoseconds, at least 1."""
        return max(1, round(cycles * 1e9 / self.clock_hz))
