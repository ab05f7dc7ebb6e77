"""A sound program without models, and one change to it at a time.

Owns: `encoder`, `decoder`, `program`. Must not know: files, how programs are run.
"""

from __future__ import annotations

from typing import Any

from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage


def encoder(**changes: Any) -> Stage:
    """A chain: tokens padded to a bucket, with their number."""
    given: dict[str, Any] = {
        "name": "encoder",
        "model": "encoder.onnx",
        "inputs": {"tokens": Feed("source", pad=(16, 32)), "length": Feed(length_of="source")},
    }
    return Stage(**{**given, **changes})


def loop(**changes: Any) -> Repeat:
    """A decoder's loop: a state, a token, a cache, a position, until it is done."""
    given: dict[str, Any] = {
        "carry": {"h": Carry("h_next", "encoder.h"), "token": Carry("token_next", 1), "keys": Append("key", 1, 64)},
        "iteration": "position",
        "done": "finished",
        "trips_max": 64,
        "collect": ("token_next",),
    }
    return Repeat(**{**given, **changes})


def decoder(**changes: Any) -> Stage:
    """A loop that reads the encoder's memory."""
    given: dict[str, Any] = {
        "name": "decoder",
        "model": "step.onnx",
        "inputs": {"memory": "encoder.memory", "length": Feed(length_of="source")},
        "loop": loop(),
    }
    return Stage(**{**given, **changes})


def program(*stages: Stage, **changes: Any) -> Program:
    """Encoder and decoder, or these stages."""
    given: dict[str, Any] = {
        "name": "speech",
        "stages": stages or (encoder(), decoder()),
        "outputs": {"tokens": "decoder.token_next"},
    }
    return Program(**{**given, **changes})
