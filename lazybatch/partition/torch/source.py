"""A torch module with inputs it accepts: what is wrong with either is said here, in one line that names the culprit.

Owns: `Source`, and the names of a module's inputs and outputs.
Must not know: how a module is exported, what its operators do, cuts.

Inputs are the tensors among the arguments of ``forward``, by the names of its parameters; one inside a container is
named by its path ("batch.mask"). Whatever else is among the arguments is a constant from then on.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.partition.proof.ports import one_line
from lazybatch.partition.proof.rows import Array
from lazybatch.partition.tensors import to_array


@dataclass(frozen=True, slots=True)
class Source:
    """A module, and how it is called with a list of tensors only.

    names: of the tensors, in order. leaves: all arguments, flattened, the tensors' places filled with examples.
    places: where among the leaves the tensors stand. spec: how the leaves make up (args, kwargs).
    examples: input name -> the values of every request that was given, batch axis included.
    graphs: what was exported already, for whoever exports: exporting takes seconds.
    """

    name: str
    module: nn.Module
    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    spec: Any
    examples: Mapping[str, Sequence[Array]]
    graphs: dict[Any, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The first request's tensors."""
        return tuple(self.leaves[place] for place in self.places)

    @property
    def device(self) -> str:
        """The kind of device it is to run on: "cpu" or "cuda", say. What is measured and proved holds there only."""
        return self.tensors[0].device.type

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By name, the shapes of the first request's tensors."""
        return {name: tuple(tensor.shape) for name, tensor in zip(self.names, self.tensors, strict=True)}

    def rows(self) -> list[list[Array]]:
        """Every request's arrays, in the order of the names."""
        return [list(row) for row in zip(*self.examples.values(), strict=True)]

    def called(self) -> nn.Module:
        """The module as one that takes the tensors, in order, and nothing else."""
        return _Called(self.module, self.leaves, self.places, self.spec)


class _Called(nn.Module):
    """Puts tensors in their places among the constant arguments."""

    def __init__(self, inner: nn.Module, leaves: Sequence[Any], places: Sequence[int], spec: Any) -> None:
        super().__init__()
        self.inner = inner
        self._leaves = [None if place in places else leaf for place, leaf in enumerate(leaves)]
        self._places = tuple(places)
        self._spec = spec
        self.training = inner.training  # of the wrapper only: the parts keep theirs

    def forward(self, *tensors: Tensor) -> Any:
        """Call the module as its examples show."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self.inner(*args, **kwargs)


def read_source(
    given: Any, example_inputs: Any, name: str | None = None, *, device: str | torch.device | None = None
) -> Source:
    """A module or an exported program (or the path of a saved one), with one or several requests it accepts.

    example_inputs: a tensor or a tuple (positional arguments), a mapping (arguments by name), or a list of mappings;
    batch axis included. An exported program brings its own. device: where it is to run; None: where its weights lie.
    A module that lies elsewhere is copied.
    Raises `ModelError` for a program that cannot be read or a module that is in training mode, `InvalidInput` for
    examples that are no arguments of the module.
    """
    if isinstance(given, str | Path):
        name = name or Path(given).stem
        given = open_program(Path(given))
    if isinstance(given, torch.export.ExportedProgram):
        example_inputs = _examples_of(given) if example_inputs is None else example_inputs
        given = given.module()
    name = name or type(given).__name__
    requests = _requests(name, example_inputs)
    _check_mode(name, given)
    if device is not None:
        given, requests = _moved(given, requests, _device(device))
    bound = [_bind(name, given, request) for request in requests]
    leaves, spec = pytree.tree_flatten(bound[0])
    places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    if not places:
        raise InvalidInput(f"example_inputs of module {name!r} hold no tensor")
    names = _names(given, bound[0], places)
    values: dict[str, list[Array]] = {label: [] for label in names}
    for request in bound:
        others = pytree.tree_leaves(request)
        if len(others) != len(leaves):
            raise InvalidInput(f"example_inputs of module {name!r}: the requests do not have the same arguments")
        for label, place in zip(names, places, strict=True):
            values[label].append(to_array(others[place]))
    return Source(name, given, names, tuple(leaves), places, spec, values)


def _check_mode(name: str, module: nn.Module) -> None:
    """Raise `ModelError` for a module in training mode, or with a part that is: it would drop at random when served."""
    if isinstance(module, torch.fx.GraphModule) and "eval" in vars(module):
        return  # made of an exported program, which has one mode for good and refuses eval()
    for path, part in module.named_modules():
        # A module without a forward (a list of layers, say) does nothing itself: its flag says nothing.
        if part.training and (part is module or type(part).forward is not nn.Module.forward):
            where = "" if part is module else f": its part {path!r} ({type(part).__name__})"
            raise ModelError(
                f"module {name!r}{where} is in training mode: answers could be random, or depend on other rows; "
                "call eval() first"
            )


def _device(asked: str | torch.device) -> torch.device:
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(f"device {asked!r} is none that torch knows: {one_line(error)}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device {asked!r} is not available: this torch sees no CUDA device")
    return device


def _moved(module: nn.Module, requests: list[Any], device: torch.device) -> tuple[nn.Module, list[Any]]:
    """The module on the device (a copy, where it is not there), and the examples as well."""
    held = [*module.parameters(), *module.buffers()]
    if any(tensor.device != device for tensor in held):
        module = copy.deepcopy(module).to(device)
    return module, pytree.tree_map(lambda leaf: _as_tensor(leaf, device), requests)


def open_program(path: Path) -> Any:
    """An exported program that `torch.export.save` wrote. Raises `ModelError` where it cannot be read."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        return torch.export.load(str(path))
    except Exception as error:
        raise ModelError(f"{path}: not a readable exported program: {one_line(error)}") from error


def _examples_of(program: Any) -> Any:
    if program.example_inputs is None:
        raise InvalidInput("the exported program brings no example inputs: pass example_inputs")
    return _Call(*program.example_inputs)


class _Call(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _requests(name: str, given: Any) -> list[Any]:
    if given is None:
        raise InvalidInput(
            f"module {name!r} needs example_inputs: the arguments of one call, as tensors with a batch axis"
        )
    if isinstance(given, list) and given and all(isinstance(request, Mapping | tuple) for request in given):
        return given
    if isinstance(given, list) and not given:
        raise InvalidInput("example_inputs is empty, expected at least one request")
    return [given]


def _bind(name: str, module: nn.Module, request: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One request as (args, kwargs), arrays as tensors."""
    if isinstance(request, _Call):
        args, kwargs = request
    elif isinstance(request, Mapping):
        args, kwargs = (), dict(request)
    else:
        args, kwargs = tuple(request) if isinstance(request, tuple | list) else (request,), {}
    args, kwargs = pytree.tree_map(_as_tensor, args), pytree.tree_map(_as_tensor, kwargs)
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"example_inputs do not fit the forward of module {name!r}: {error}") from error
    return args, kwargs


def _as_tensor(leaf: Any, device: torch.device | None = None) -> Any:
    leaf = to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
    return leaf.to(device) if isinstance(leaf, Tensor) and device is not None else leaf


def _names(module: nn.Module, bound: tuple[tuple[Any, ...], dict[str, Any]], places: Sequence[int]) -> tuple[str, ...]:
    """The path of every tensor among the arguments, by the names of the parameters of ``forward``."""
    args, kwargs = bound
    parameters = list(inspect.signature(module.forward).parameters.values())
    positional = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    several = next((k for k, p in enumerate(parameters) if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    labels = [
        positional[k] if several is None or k < several else f"{parameters[several].name}_{k - several}"
        for k in range(len(args))
    ]
    paths = [(labels[k], *path) for k, value in enumerate(args) for path, _ in pytree.tree_flatten_with_path(value)[0]]
    paths += [(key, *path) for key, value in kwargs.items() for path, _ in pytree.tree_flatten_with_path(value)[0]]
    return tuple(dotted(paths[place]) for place in places)


def dotted(path: Sequence[Any]) -> str:
    """A path through containers as one name."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


def answer_names(answer: Any, inputs: Collection[str]) -> tuple[str, ...]:
    """What the tensors of an answer are called, in order: keys and fields, "output_0" in a plain tuple, else "output".

    answer: what a module returned, or anything of that structure. One named like an input gets "_out" behind it.
    """
    named = []
    for path, leaf in pytree.tree_flatten_with_path(answer)[0]:
        if not isinstance(leaf, Tensor):
            continue
        name = "output" if not path else dotted(path)
        name = f"output_{name}" if path and isinstance(path[0], pytree.SequenceKey) else name
        named.append(f"{name}_out" if name in inputs else name)
    return tuple(named)


def output_tensors(answer: Any) -> list[Tensor]:
    """The tensors of an answer, in order; constants are no outputs."""
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]


def to_tensor(array: Array) -> Tensor:
    """An array as a tensor, on its own memory where torch can use it: in order, and open for writing."""
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())


def numpy_name(dtype: torch.dtype) -> str | None:
    """NumPy's name of a type; float32 for bfloat16; None where there is none."""
    if dtype is torch.bfloat16:
        return "float32"
    try:
        return str(torch.empty(0, dtype=dtype).numpy().dtype)
    except TypeError:
        return None
