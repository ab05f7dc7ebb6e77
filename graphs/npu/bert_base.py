"""BERT-base (Devlin et al., NAACL 2019): twelve encoder layers of width 768, four nodes each.

Owns: the network's layers. Must not know: the machine, latency tables.
"""

from __future__ import annotations

from graphs.npu.blocks import encoder_block
from graphs.npu.layers import Matrix
from graphs.npu.network import Network, Node

LAYERS, WIDTH, HEADS, INNER = 12, 768, 12, 3072


def build(length: int = 128) -> Network:
    """``length`` tokens per request; looking up embeddings is neglected."""
    nodes = [node for k in range(LAYERS) for node in encoder_block(f"layer{k}", length, WIDTH, HEADS, INNER)]
    nodes.append(Node("pooler", (Matrix(WIDTH, WIDTH),)))
    return Network("bert-base", "Devlin et al. 2019", tuple(nodes), {"tokens": length})
