"""The bodies of the letters-to-phonemes program as ONNX: one step of a gated recurrent unit, and what it says.

Owns: `bodies`.
Must not know: where the weights come from, the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from graphs.g2p import Gru, Weights

OPSET = 18


def bodies(weights: Weights, end: int) -> dict[str, onnx.ModelProto]:
    """By stage: ``encoder`` takes a letter and the state, ``decoder`` a phoneme and the state; the batch is dynamic.

    The decoder also says which phoneme is likeliest, and whether that is the symbol ``end``.
    """
    return {"encoder": _encoder(weights), "decoder": _decoder(weights, end)}


def _encoder(weights: Weights) -> onnx.ModelProto:
    nodes, constants = _gru(weights.encoder, "letter")
    width = weights.encoder.width
    letter = helper.make_tensor_value_info("letter", TensorProto.INT64, ["batch"])
    return _model("encoder", nodes, constants, [letter, _state("h", width)], [_state("h_next", width)])


def _decoder(weights: Weights, end: int) -> onnx.ModelProto:
    nodes, constants = _gru(weights.decoder, "phoneme")
    width = weights.decoder.width
    constants += [
        numpy_helper.from_array(weights.output_weights, "output_weights"),
        numpy_helper.from_array(weights.output_bias, "output_bias"),
        numpy_helper.from_array(np.array(end, np.int64), "end"),
    ]
    nodes += [
        helper.make_node("Gemm", ["h_next", "output_weights", "output_bias"], ["scores"], transB=1),
        helper.make_node("ArgMax", ["scores"], ["phoneme_next"], axis=1, keepdims=0),
        helper.make_node("Equal", ["phoneme_next", "end"], ["finished"]),
    ]
    phoneme, following = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch"]) for name in ("phoneme", "phoneme_next")
    )
    finished = helper.make_tensor_value_info("finished", TensorProto.BOOL, ["batch"])
    return _model(
        "decoder", nodes, constants, [phoneme, _state("h", width)], [_state("h_next", width), following, finished]
    )


def _state(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])


def _gru(gru: Gru, symbol: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Nodes and constants of one step: ``symbol`` (batch,) and ``h`` (batch, width) to ``h_next``."""
    constants = [
        numpy_helper.from_array(array, name)
        for name, array in (
            ("embedding", gru.embedding),
            ("input_weights", gru.input_weights),
            ("state_weights", gru.state_weights),
            ("input_bias", gru.input_bias),
            ("state_bias", gru.state_bias),
            ("gates", np.array([2 * gru.width, gru.width], np.int64)),
            ("one", np.array(1, np.float32)),
        )
    ]
    nodes = [
        helper.make_node("Gather", ["embedding", symbol], ["embedded"]),
        helper.make_node("Gemm", ["embedded", "input_weights", "input_bias"], ["given"], transB=1),
        helper.make_node("Gemm", ["h", "state_weights", "state_bias"], ["kept"], transB=1),
        helper.make_node("Split", ["given", "gates"], ["given_gates", "given_new"], axis=1),
        helper.make_node("Split", ["kept", "gates"], ["kept_gates", "kept_new"], axis=1),
        helper.make_node("Add", ["given_gates", "kept_gates"], ["gate_sums"]),
        helper.make_node("Sigmoid", ["gate_sums"], ["opened"]),
        helper.make_node("Split", ["opened"], ["reset", "update"], axis=1, num_outputs=2),
        helper.make_node("Mul", ["reset", "kept_new"], ["kept_part"]),
        helper.make_node("Add", ["given_new", "kept_part"], ["new_sum"]),
        helper.make_node("Tanh", ["new_sum"], ["new"]),
        helper.make_node("Sub", ["one", "update"], ["renewed"]),
        helper.make_node("Mul", ["renewed", "new"], ["from_new"]),
        helper.make_node("Mul", ["update", "h"], ["from_old"]),
        helper.make_node("Add", ["from_new", "from_old"], ["h_next"]),
    ]
    return nodes, constants


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
