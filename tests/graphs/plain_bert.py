"""MiniLM in NumPy, written from the paper against the published weights: the reference for the one in torch.

Owns: `sentence`. Must not know: torch, lazybatch, `graphs.bert`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LAYERS, HEADS = 6, 12

_erf = np.vectorize(erf, otypes=[np.float64])


def _linear(x: Array, weights: Mapping[str, Any], name: str) -> Array:
    made: Array = x @ weights[f"{name}.weight"].astype(np.float64).T + weights[f"{name}.bias"]
    return made


def _norm(x: Array, weights: Mapping[str, Any], name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    made: Array = scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return made


def sentence(ids: NDArray[np.int64], weights: Mapping[str, Any]) -> tuple[Array, Array]:
    """One unpadded row in float64: the tokens' last vectors (L, 384) and the sentence's (384,)."""
    length = len(ids)
    x = weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = x + weights["embeddings.position_embeddings.weight"][:length]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, weights, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (
            _linear(x, weights, f"{at}.attention.self.{part}").reshape(length, HEADS, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (shares @ value).transpose(1, 0, 2).reshape(length, -1)
        attended = _linear(mixed, weights, f"{at}.attention.output.dense")
        x = _norm(x + attended, weights, f"{at}.attention.output.LayerNorm")
        inner = _linear(x, weights, f"{at}.intermediate.dense")
        inner = inner * 0.5 * (1 + _erf(inner / sqrt(2)))
        x = _norm(x + _linear(inner, weights, f"{at}.output.dense"), weights, f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return x, mean / np.linalg.norm(mean)
