"""How the models with loops are put together: stages, their tensors, what feeds what.

Owns: `Plan`: per stage the shapes of its inputs and names of its outputs, and the `Program` they make.
Must not know: torch, ONNX, what the stages compute.

All three encode in a chain and decode in a loop. Rows of different source lengths join because the source is padded to
one length and every stage is told the row's own: recurrent layers stop there (backward ones begin there), attention is
masked beyond it. The decoder's rows stand at different positions: each row's position is an input of the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.sizes import RESERVED, START, Gnmt, Las, Size, Transformer
from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage


class Port(NamedTuple):
    """An input of a stage: its shape without the batch axis; integers from ``low`` to ``high``, floats where None."""

    shape: tuple[int, ...] = ()
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A stage without its model. inputs: in the order of the model's arguments; outputs likewise."""

    name: str
    inputs: Mapping[str, Port]
    outputs: tuple[str, ...]
    feeds: Mapping[str, Feed | str]
    loop: Repeat | None = None

    def examples(self, rows: int, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Seeded inputs that the stage accepts, by name, rows along the first axis."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.standard_normal((rows, *port.shape), dtype=np.float32)
            if port.high is None
            else rng.integers(port.low, port.high, (rows, *port.shape), endpoint=True)
            for name, port in self.inputs.items()
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a model, in order, and which of their tensors are its answer."""

    name: str
    parts: tuple[Part, ...]
    outputs: Mapping[str, str]

    def program(self, models: Mapping[str, Any], examples: Mapping[str, Any] | None = None) -> Program:
        """The program, given a model for every stage. examples: rows that its model accepts, by stage."""
        given = examples or {}
        stages = [
            Stage(part.name, models[part.name], part.feeds, part.loop, examples=given.get(part.name))
            for part in self.parts
        ]
        return Program(self.name, tuple(stages), self.outputs)


def plan(name: str, size: Size) -> Plan:
    """The plan of a model of this size, called ``name``."""
    if isinstance(size, Gnmt):
        return _gnmt(name, size)
    if isinstance(size, Transformer):
        return _transformer(name, size)
    return _las(name, size)


_TARGET: dict[str, Feed | str] = {"target_length": "target_length"}


def _decoding(states: Mapping[str, Carry | Append], size: Size) -> Repeat:
    """A greedy decoder: the token chosen goes into the next step; END, or the maximum, ends the row."""
    return Repeat(
        carry={"token": Carry("token_next", START), **states},
        iteration="position",
        done="finished",
        trips_max=size.target_max,
        collect=("token_next",),
    )


def _choosing(size: Size) -> dict[str, Port]:
    """Inputs that every decoder has."""
    return {
        "token": Port((), RESERVED, size.vocabulary - 1),
        "position": Port((), 0, size.target_max - 1),
        "target_length": Port((), 1, size.target_max),
    }


def _reading(size: Gnmt | Transformer) -> tuple[dict[str, Port], dict[str, Feed | str]]:
    """Inputs and feeds of an encoder of words."""
    ports = {
        "tokens": Port((size.source_max,), RESERVED, size.vocabulary - 1),
        "length": Port((), 1, size.source_max),
    }
    return ports, {"tokens": Feed("source", pad=(size.source_max,)), "length": Feed(length_of="source")}


def _gnmt(name: str, size: Gnmt) -> Plan:
    ports, feeds = _reading(size)
    encoder = Part("encoder", ports, ("keys", "memory"), feeds)
    state = Port((size.layers, size.width))
    remembered = Port((size.source_max, size.width))
    decoder = Part(
        "decoder",
        {
            **_choosing(size),
            "h": state,
            "c": state,
            "keys": remembered,
            "memory": remembered,
            "length": ports["length"],
        },
        ("token_next", "finished", "h_next", "c_next"),
        {"keys": "encoder.keys", "memory": "encoder.memory", "length": Feed(length_of="source"), **_TARGET},
        _decoding({"h": Carry("h_next"), "c": Carry("c_next")}, size),
    )
    return Plan(name, (encoder, decoder), {"tokens": "decoder.token_next"})


def layered(names: Iterable[str], layers: int) -> tuple[str, ...]:
    """``names`` of every layer in turn: "keys0", "values0", "keys1", ..."""
    return tuple(f"{name}{layer}" for layer in range(layers) for name in names)


def _transformer(name: str, size: Transformer) -> Plan:
    ports, feeds = _reading(size)
    seen = layered(("cross_keys", "cross_values"), size.layers)
    encoder = Part("encoder", ports, seen, feeds)
    deep = size.width // size.heads
    tensors: dict[str, Port] = {}
    states: dict[str, Carry | Append] = {}
    for layer in range(size.layers):
        # keys lie with their positions last, as the product of a query with all of them wants them
        tensors[f"keys{layer}"] = Port((size.heads, deep, size.target_max))
        tensors[f"values{layer}"] = Port((size.heads, size.target_max, deep))
        states[f"keys{layer}"] = Append(f"key{layer}", 2, size.target_max)
        states[f"values{layer}"] = Append(f"value{layer}", 1, size.target_max)
    for layer in range(size.layers):
        tensors[f"cross_keys{layer}"] = Port((size.heads, deep, size.source_max))
        tensors[f"cross_values{layer}"] = Port((size.heads, size.source_max, deep))
    decoder = Part(
        "decoder",
        {**_choosing(size), "length": ports["length"], **tensors},
        ("token_next", "finished", *layered(("key", "value"), size.layers)),
        {**{tensor: f"encoder.{tensor}" for tensor in seen}, "length": Feed(length_of="source"), **_TARGET},
        _decoding(states, size),
    )
    return Plan(name, (encoder, decoder), {"tokens": "decoder.token_next"})


def _las(name: str, size: Las) -> Plan:
    ports = {"frames": Port((size.source_max, size.features)), "length": Port((), 1, size.source_max)}
    feeds = {"frames": Feed("frames", pad=(size.source_max,)), "length": Feed(length_of="frames")}
    listener = Part("listener", ports, ("keys", "memory"), feeds)
    state = Port((size.spellers, size.speller))
    speller = Part(
        "speller",
        {
            **_choosing(size),
            "h": state,
            "c": state,
            "context": Port((2 * size.side,)),
            "keys": Port((size.steps, size.speller)),
            "memory": Port((size.steps, 2 * size.side)),
            "length": ports["length"],
        },
        ("token_next", "finished", "h_next", "c_next", "context_next"),
        {"keys": "listener.keys", "memory": "listener.memory", "length": Feed(length_of="frames"), **_TARGET},
        _decoding({"h": Carry("h_next"), "c": Carry("c_next"), "context": Carry("context_next")}, size),
    )
    return Plan(name, (listener, speller), {"characters": "speller.token_next"})
