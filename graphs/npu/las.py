"""Listen, Attend and Spell (Chan et al., ICASSP 2016): a pyramid of bidirectional LSTMs, then an LSTM speller.

Owns: the network's layers. Must not know: the machine, latency tables.

The listener has a bidirectional LSTM of 256 units a side over frames of 40 features, and three more, each of which
halves the time by joining two neighbours. A node is one layer, both directions, over up to ``CHUNK`` steps. A spelling
step (one node) is two LSTM layers of 512, the attention, and a projection onto 30 characters.
"""

from __future__ import annotations

from graphs.npu.layers import ROW_PASSES, Attention, Layer, Lstm, Matrix
from graphs.npu.lengths import chunks
from graphs.npu.network import Network, Node

FEATURES, SIDE, SPELLER, CHARACTERS, CHUNK = 40, 256, 512, 30, 80


def build(frames: int = 320, characters: int = 60) -> Network:
    """Frames of 10 ms, and characters spelled; frames are divided by eight on their way up."""
    nodes, steps = [], frames
    for layer in range(4):
        inputs = FEATURES if layer == 0 else 4 * SIDE
        steps = frames >> layer
        for number, part in enumerate(chunks(steps, CHUNK)):
            nodes.append(Node(f"listen{layer}.{number}", (Lstm(inputs, SIDE, part),) * 2))
    nodes.append(Node("listen.keys", (Matrix(2 * SIDE, SPELLER, steps),)))
    spell: tuple[Layer, ...] = (
        Lstm(2 * SPELLER, SPELLER),
        Lstm(SPELLER, SPELLER),
        Matrix(SPELLER, SPELLER),
        Attention(1, steps, SPELLER, 1),
        Matrix(2 * SPELLER, CHARACTERS, row_passes=ROW_PASSES),
    )
    nodes += [Node(f"spell{number}", spell) for number in range(1, characters + 1)]
    return Network("las", "Chan et al. 2016", tuple(nodes), {"frames": frames, "characters": characters})
