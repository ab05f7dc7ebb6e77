"""Transformer base for translation (Vaswani et al., NeurIPS 2017): 6 + 6 layers of width 512, decoding unrolled.

Owns: the network's layers. Must not know: the machine, latency tables.

The encoder has one node per layer. A decoding step is three nodes: layers 1-3, layers 4-6, the projection onto the
vocabulary of 37,000 (shared byte pairs). Keys and values of the source are computed once, in the last encoder node.
In step t a row attends to t target and all source positions.
"""

from __future__ import annotations

from graphs.npu.blocks import encoder_block
from graphs.npu.layers import ROW_PASSES, Attention, Layer, Matrix
from graphs.npu.lengths import DECODER_STEPS, ENCODER_LENGTH
from graphs.npu.network import Network, Node

LAYERS, WIDTH, HEADS, INNER, VOCABULARY = 6, 512, 8, 2048, 37000


def _decoder_layer(step: int, source: int) -> tuple[Layer, ...]:
    return (
        Matrix(WIDTH, 3 * WIDTH),
        Attention(1, step, WIDTH, HEADS),
        Matrix(WIDTH, WIDTH, row_passes=ROW_PASSES),
        Matrix(WIDTH, WIDTH),
        Attention(1, source, WIDTH, HEADS),
        Matrix(WIDTH, WIDTH, row_passes=ROW_PASSES),
        Matrix(WIDTH, INNER),
        Matrix(INNER, WIDTH, row_passes=ROW_PASSES),
    )


def build(encoder_length: int = ENCODER_LENGTH, decoder_steps: int = DECODER_STEPS) -> Network:
    """Source tokens, and decoding steps that every request makes."""
    nodes = [
        Node(f"encoder{k}", tuple(layer for node in block for layer in node.layers))
        for k in range(LAYERS)
        for block in [encoder_block("", encoder_length, WIDTH, HEADS, INNER)]
    ]
    nodes.append(Node("encoder.kv", (Matrix(WIDTH, 2 * LAYERS * WIDTH, encoder_length),)))
    for step in range(1, decoder_steps + 1):
        half = _decoder_layer(step, encoder_length) * (LAYERS // 2)
        nodes += [Node(f"step{step}.low", half), Node(f"step{step}.high", half)]
        nodes.append(Node(f"step{step}.project", (Matrix(WIDTH, VOCABULARY, row_passes=ROW_PASSES),)))
    lengths = {"encoder": encoder_length, "decoder": decoder_steps}
    return Network("transformer", "Vaswani et al. 2017, base model", tuple(nodes), lengths)
