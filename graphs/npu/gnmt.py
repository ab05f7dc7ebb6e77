"""GNMT (Wu et al., 2016): 8 + 8 LSTM layers of width 1024 with attention, loops unrolled.

Owns: the network's layers. Must not know: the machine, latency tables.

The encoder runs layer by layer, the first one in both directions; a node is one layer over up to ``CHUNK`` steps, and
the products of its inputs are made for all of them at once. A decoding step is four nodes: the first layer with the
attention, two groups of layers (each reads the attention context besides the layer below), the projection onto 32,000
word pieces. Greedy decoding; beam search would multiply the rows, not the weights.
"""

from __future__ import annotations

from graphs.npu.layers import ROW_PASSES, Attention, Layer, Lstm, Matrix
from graphs.npu.lengths import DECODER_STEPS, ENCODER_LENGTH, chunks
from graphs.npu.network import Network, Node

LAYERS, WIDTH, VOCABULARY, CHUNK = 8, 1024, 32000, 6


def _encoder(length: int) -> list[Node]:
    nodes = []
    for layer in range(LAYERS):
        for number, steps in enumerate(chunks(length, CHUNK)):
            passes: tuple[Layer, ...] = (Lstm(2 * WIDTH if layer == 1 else WIDTH, WIDTH, steps),)
            nodes.append(Node(f"encoder{layer}.{number}", passes * (2 if layer == 0 else 1)))
    nodes.append(Node("encoder.keys", (Matrix(WIDTH, WIDTH, length),)))
    return nodes


def _step(number: int, source: int) -> list[Node]:
    attention = (Matrix(WIDTH, WIDTH), Attention(1, source, WIDTH, 1))
    upper = (Lstm(2 * WIDTH, WIDTH),)
    return [
        Node(f"step{number}.attend", (Lstm(2 * WIDTH, WIDTH), *attention)),
        Node(f"step{number}.middle", upper * 3),
        Node(f"step{number}.upper", upper * 4),
        Node(f"step{number}.project", (Matrix(WIDTH, VOCABULARY, row_passes=ROW_PASSES),)),
    ]


def build(encoder_length: int = ENCODER_LENGTH, decoder_steps: int = DECODER_STEPS) -> Network:
    """Source tokens, and decoding steps that every request makes."""
    nodes = _encoder(encoder_length)
    for number in range(1, decoder_steps + 1):
        nodes += _step(number, encoder_length)
    lengths = {"encoder": encoder_length, "decoder": decoder_steps}
    return Network("gnmt", "Wu et al. 2016", tuple(nodes), lengths)
