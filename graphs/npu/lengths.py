"""Sequence lengths by which the loops of translation models are unrolled.

Owns: the mean length of a request, the characterised bound, and cutting a length into chunks.
Must not know: networks, the machine.

The lengths of a request are taken as 18 words, the mean (17.5) of the mix that an early public prototype of the paper's
authors uses: 20 % 5 words, 45 % 15, 25 % 25, 10 % 35. Its 90 % quantile is the paper's: "90 % of translated German
sentences fall within 30 words", hence dec_timesteps = 32.
"""

from __future__ import annotations

ENCODER_LENGTH = 18
DECODER_STEPS = 18
DEC_TIMESTEPS = 32


def chunks(length: int, size: int) -> list[int]:
    """Parts of at most ``size`` that sum to ``length``, the last one the smallest."""
    return [min(size, length - start) for start in range(0, length, size)]
