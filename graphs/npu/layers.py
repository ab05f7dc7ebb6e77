"""Layers as the machine sees them: shapes, and what they demand at a batch size.

Owns: one frozen class per kind of layer; each has `demand(batch, machine)`.
Must not know: which network a layer belongs to.

Element-wise operations that follow a product (bias, batch normalisation folded into the weights, ReLU, residual sum)
are done on the way out of the array and cost nothing; those that need a whole row (softmax, layer normalisation) and
the gates of an LSTM are work for the vector unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from graphs.npu.machine import Demand, Machine

GATE_OPERATIONS = 12
"""Vector operations per hidden value of an LSTM step: four gate functions of two each, three products, one sum."""
ROW_PASSES = 4
"""Passes over a row for softmax or layer normalisation: two to reduce, two to scale."""


class Layer(Protocol):
    """Anything with a demand."""

    def demand(self, batch: int, machine: Machine) -> Demand:
        """What the layer asks of the machine for ``batch`` requests."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """kernel x kernel, ``inputs`` to ``outputs`` channels, square images of ``size`` output pixels a side."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1

    def demand(self, batch: int, machine: Machine) -> Demand:
        """See `Layer.demand`."""
        pixels = batch * self.size**2
        inner = self.inputs * self.kernel**2
        read = batch * (self.size * self.stride) ** 2 * self.inputs
        return Demand(
            machine.convolution_cycles(pixels, inner, self.outputs),
            0.0,
            inner * self.outputs * machine.value_bytes,
            (read + pixels * self.outputs) * machine.value_bytes,
        )


@dataclass(frozen=True, slots=True)
class Depthwise:
    """One kernel x kernel filter per channel, on the array or the vector unit, whichever is faster."""

    size: int
    channels: int
    kernel: int = 3
    stride: int = 1

    def demand(self, batch: int, machine: Machine) -> Demand:
        """See `Layer.demand`."""
        pixels, taps = batch * self.size**2, self.kernel**2
        array = machine.depthwise_array_cycles(pixels, self.channels, taps)
        vector = machine.vector_cycles(pixels * self.channels * taps)
        moved = (self.stride**2 + 1) * pixels * self.channels
        return Demand(
            array if array < vector else 0.0,
            0.0 if array < vector else vector,
            self.channels * taps * machine.value_bytes,
            moved * machine.value_bytes,
        )


@dataclass(frozen=True, slots=True)
class Matrix:
    """``rows`` rows per request times weights of inner x columns, then ``row_passes`` passes of the vector unit."""

    inner: int
    columns: int
    rows: int = 1
    row_passes: int = 0

    def demand(self, batch: int, machine: Machine) -> Demand:
        """See `Layer.demand`."""
        rows = batch * self.rows
        return Demand(
            machine.matrix_cycles(rows, self.inner, self.columns),
            machine.vector_cycles(self.row_passes * rows * self.columns),
            self.inner * self.columns * machine.value_bytes,
            rows * (self.inner + self.columns) * machine.value_bytes,
        )


@dataclass(frozen=True, slots=True)
class Attention:
    """Scores, softmax and weighted sum of ``heads`` heads: ``queries`` rows over ``keys`` rows, per request.

    Nothing is shared between requests: each brings its own keys and values, so a batch saves nothing here.
    """

    queries: int
    keys: int
    width: int
    heads: int

    def demand(self, batch: int, machine: Machine) -> Demand:
        """See `Layer.demand`."""
        head = self.width // self.heads
        products = machine.matrix_cycles(self.queries, head, self.keys)
        products += machine.matrix_cycles(self.queries, self.keys, head)
        values = (2 * self.queries + 2 * self.keys) * self.width + 2 * self.heads * self.queries * self.keys
        return Demand(
            batch * self.heads * products,
            machine.vector_cycles(batch * ROW_PASSES * self.heads * self.queries * self.keys),
            0.0,
            batch * values * machine.value_bytes,
        )


@dataclass(frozen=True, slots=True)
class Lstm:
    """``steps`` steps of one LSTM layer: the inputs of all steps in one product, the hidden state step by step.

    The recurrent weights stay in the weight SRAM from step to step as far as they fit; what does not fit is read again
    in every step.
    """

    inputs: int
    hidden: int
    steps: int = 1

    def demand(self, batch: int, machine: Machine) -> Demand:
        """See `Layer.demand`."""
        gates = 4 * self.hidden
        recurrent_bytes = self.hidden * gates * machine.value_bytes
        again_bytes = max(0, recurrent_bytes - machine.weight_sram_bytes)
        array = machine.matrix_cycles(batch * self.steps, self.inputs, gates)
        array += self.steps * machine.matrix_cycles(batch, self.hidden, gates)
        return Demand(
            array,
            machine.vector_cycles(GATE_OPERATIONS * batch * self.steps * self.hidden),
            self.inputs * gates * machine.value_bytes + recurrent_bytes + (self.steps - 1) * again_bytes,
            batch * self.steps * (self.inputs + self.hidden) * machine.value_bytes,
        )


@dataclass(frozen=True, slots=True)
class Vector:
    """``operations`` per request on the vector unit, over ``values`` values read and written."""

    operations: int
    values: int

    def demand(self, batch: int, machine: Machine) -> Demand:
        """See `Layer.demand`."""
        return Demand(
            0.0, machine.vector_cycles(batch * self.operations), 0.0, batch * self.values * machine.value_bytes
        )
