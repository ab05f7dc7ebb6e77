"""What the networks built of attention share.

Owns: the encoder block. Must not know: which network it is part of.
"""

from __future__ import annotations

from graphs.npu.layers import ROW_PASSES, Attention, Matrix
from graphs.npu.network import Node


def encoder_block(name: str, length: int, width: int, heads: int, inner: int) -> tuple[Node, ...]:
    """Self-attention and feed-forward of an encoder layer over ``length`` rows, each with layer normalisation."""
    return (
        Node(f"{name}.qkv", (Matrix(width, 3 * width, length),)),
        Node(f"{name}.attention", (Attention(length, length, width, heads), Matrix(width, width, length, ROW_PASSES))),
        Node(f"{name}.ffn1", (Matrix(width, inner, length),)),
        Node(f"{name}.ffn2", (Matrix(inner, width, length, ROW_PASSES),)),
    )
