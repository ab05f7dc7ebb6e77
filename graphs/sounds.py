"""Seeded sounds at 16 kHz: what a voice detector must tell apart, without a recording.

Owns: `sound`, `sounds` and their `durations_s`. A sound is stretches of silence, hiss, tones, clicks and sung vowels.
Must not know: what listens.

A vowel is a train of pulses as the vocal folds make them, with a wandering pitch, sent through the resonances of a
mouth. It is far from speech, and near enough for a detector to answer with more than zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
SHORTEST_S, LONGEST_S = 0.5, 10.0
FLOOR = 1e-3
"""Standard deviation of the noise under everything: a microphone is never silent."""

Signal = NDArray[np.float32]

_VOWELS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
_WIDTHS_HZ = (60.0, 90.0, 150.0)


def _silence(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.zeros(samples)


def _hiss(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A burst of noise that fades in and out."""
    return rng.standard_normal(samples) * np.hanning(samples) * rng.uniform(0.02, 0.3)


def _tone(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A steady tone with one overtone."""
    phase = 2 * np.pi * rng.uniform(100, 3000) * np.arange(samples) / RATE_HZ
    return (np.sin(phase) + 0.3 * np.sin(2 * phase)) * rng.uniform(0.05, 0.4)


def _clicks(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A few single samples far from zero."""
    made = np.zeros(samples)
    made[rng.integers(0, samples, size=max(1, samples // 2000))] = rng.uniform(-0.9, 0.9)
    return made


def _vowels(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Two to six vowels on one breath, a syllable each."""
    ends = np.linspace(0, samples, rng.integers(3, 8)).astype(int)
    pitch_hz = rng.uniform(90, 220) * np.exp(np.cumsum(rng.standard_normal(samples)) * 2e-4)
    pulses = np.diff(np.floor(np.cumsum(pitch_hz) / RATE_HZ), prepend=0.0)
    breath = pulses + 0.01 * rng.standard_normal(samples)
    made = np.zeros(samples)
    for first, stop in pairwise(ends):
        part = breath[first:stop] * np.hanning(stop - first) ** 0.3
        for resonance_hz, width_hz in zip(_VOWELS_HZ[rng.integers(len(_VOWELS_HZ))], _WIDTHS_HZ, strict=True):
            part = _resonate(part, resonance_hz * rng.uniform(0.9, 1.1), width_hz)
        made[first:stop] = part
    return made / max(float(np.abs(made).max()), 1e-9) * rng.uniform(0.2, 0.8)


def _resonate(signal: NDArray[np.float64], centre_hz: float, width_hz: float) -> NDArray[np.float64]:
    """Through a resonator with two poles, by its response to a pulse (what is left of it after 50 ms is nothing)."""
    time_s = np.arange(RATE_HZ // 20) / RATE_HZ
    response = np.exp(-np.pi * width_hz * time_s) * np.sin(2 * np.pi * centre_hz * time_s)
    size = len(signal) + len(response)
    return np.fft.irfft(np.fft.rfft(signal, size) * np.fft.rfft(response, size), size)[: len(signal)]


_KINDS: tuple[Callable[[int, np.random.Generator], NDArray[np.float64]], ...]
_KINDS = (_silence, _hiss, _tone, _clicks, _vowels, _vowels)


def sound(duration_s: float, seed: int = 0) -> Signal:
    """One sound of that length: stretches of 0.1 to 1.5 s, each of a random kind, over a faint noise. Within -1..1."""
    rng = np.random.default_rng(seed)
    left = round(duration_s * RATE_HZ)
    parts = []
    while left > 0:
        samples = min(left, max(64, int(rng.uniform(0.1, 1.5) * RATE_HZ)))
        parts.append(_KINDS[rng.integers(len(_KINDS))](samples, rng))
        left -= samples
    made = np.concatenate(parts) if parts else np.zeros(0)
    return np.clip(made + FLOOR * rng.standard_normal(len(made)), -1, 1).astype(np.float32)


def sounds(count: int, seed: int = 0, *, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S) -> list[Signal]:
    """Different sounds. Lengths are log-uniform between the shortest and the longest: short ones are common."""
    lengths_s = durations_s(count, seed, shortest_s=shortest_s, longest_s=longest_s)
    return [sound(length_s, seed=seed * 100_003 + k + 1) for k, length_s in enumerate(lengths_s)]


def durations_s(
    count: int, seed: int = 0, *, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S
) -> list[float]:
    """The lengths of `sounds`, without their samples."""
    rng = np.random.default_rng(seed)
    return [float(one) for one in np.exp(rng.uniform(np.log(shortest_s), np.log(longest_s), size=count))]
