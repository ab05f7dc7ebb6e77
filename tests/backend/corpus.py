"""The onnx package's backend cases, read offline.

Owns: `BackendCase`, and where cases come from: node cases are made by importing their modules, the others lie as files.
Must not know: lazybatch, ONNX Runtime.

A *source* is what can be loaded by itself: one module of node cases, one folder of file cases, one light network.
Shards and the fast subset are chosen by source, since importing all node modules takes ten seconds.

The "light" models are famous networks whose weights were replaced by one number, so that any wrong wiring between
equal layers goes unseen. `reweighted` gives them seeded random weights, scaled so that activations stay finite.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
NODES = "onnx.backend.test.case.node"
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class BackendCase:
    """A model and its data sets. ``wanted`` is None where no trustworthy answer is stored."""

    id: str
    model: onnx.ModelProto
    feeds: tuple[dict[str, Any], ...]
    wanted: tuple[tuple[Any, ...] | None, ...]
    rtol: float = 1e-3
    atol: float = 1e-7


def sources() -> list[str]:
    """All sources, in a fixed order: file folders first, then light networks, then node modules, by name."""
    package = importlib.import_module(NODES)
    names = [f"{NODES}.{module.name}" for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]
    traditional = importlib.import_module(f"{NODES}.ai_onnx_ml")
    names += [f"{NODES}.ai_onnx_ml.{module.name}" for module in pkgutil.iter_modules(traditional.__path__)]
    light = [f"light/{path.stem}" for path in (DATA / "light").glob("*.onnx")]
    return [*FOLDERS, *sorted(light), *sorted(names)]


def load(source: str) -> Iterator[BackendCase]:
    """The cases of one source, in a fixed order."""
    if source.startswith("light/"):
        yield _light(source)
    elif source in FOLDERS:
        yield from _folder(source)
    else:
        yield from _node_module(source)


def _real_inputs(model: onnx.ModelProto) -> list[str]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [tensor.name for tensor in model.graph.input if tensor.name not in weights]


def _plain(item: Any) -> Any:
    """Data sets hold arrays, lists of arrays, tensors in protobuf form, or None."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    if isinstance(item, list):
        return [_plain(part) for part in item]
    return item if item is None else np.asarray(item)


def _feeds(model: onnx.ModelProto, inputs: Any) -> dict[str, Any]:
    pairs = zip(_real_inputs(model), inputs, strict=False)
    return {name: _plain(item) for name, item in pairs if item is not None}


def _node_module(name: str) -> Iterator[BackendCase]:
    package: Any = importlib.import_module(NODES)
    before = len(package._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        importlib.import_module(name)
    for case in package._NodeTestCases[before:]:
        feeds = tuple(_feeds(case.model, inputs) for inputs, _ in case.data_sets)
        wanted = tuple(tuple(_plain(item) for item in outputs) for _, outputs in case.data_sets)
        yield BackendCase(f"node/{case.name}", case.model, feeds, wanted, case.rtol, case.atol)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(path.read_bytes())
        return numpy_helper.to_list(sequence)
    if kind.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(path.read_bytes())
        return numpy_helper.to_optional(optional)
    return numpy_helper.to_array(onnx.load_tensor(path))


def _folder(kind: str) -> Iterator[BackendCase]:
    for folder in sorted((DATA / kind).iterdir()):
        if not (folder / "model.onnx").exists():
            continue
        model = onnx.load(folder / "model.onnx")
        tolerances = json.loads((folder / "data.json").read_text()) if (folder / "data.json").exists() else {}
        names = _real_inputs(model)
        kinds = {tensor.name: tensor.type for tensor in [*model.graph.input, *model.graph.output]}
        feeds, wanted = [], []
        for data in sorted(folder.glob("test_data_set_*")):
            files = sorted(data.glob("input_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
            feeds.append({name: _read(path, kinds[name]) for name, path in zip(names, files, strict=False)})
            outputs = [(data / f"output_{k}.pb", tensor) for k, tensor in enumerate(model.graph.output)]
            wanted.append(tuple(_read(path, tensor.type) for path, tensor in outputs))
        yield BackendCase(
            f"{kind}/{folder.name}", model, tuple(feeds), tuple(wanted),
            tolerances.get("rtol", 1e-3), tolerances.get("atol", 1e-7),
        )  # fmt: skip


def reweighted(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The same network with different random numbers for every ``ConstantOfShape`` weight and float initializer.

    Matrices and kernels get mean 0 and variance 2 / fan-in, as at the start of training; vectors lie around 1, so that
    normalisation scales and variances are positive.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    rng = np.random.default_rng(seed)
    shapes = {tensor.name: tensor for tensor in made.graph.initializer}
    weights: list[onnx.TensorProto] = []
    kept: list[onnx.NodeProto] = []
    for node in made.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = numpy_helper.to_array(shapes[node.input[0]]).tolist()
            weights.append(numpy_helper.from_array(_random(rng, shape), node.output[0]))
        else:
            kept.append(node)
    del made.graph.node[:]
    made.graph.node.extend(kept)
    for tensor in made.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(_random(rng, list(tensor.dims)), tensor.name))
    made.graph.initializer.extend(weights)
    for node in kept:
        if node.op_type == "Softmax":  # it saturates: what goes in says more than the 0s and the 1 that come out
            made.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
    made.ir_version = max(made.ir_version, 4)  # from here on weights need not be graph inputs as well
    return made


def _random(rng: np.random.Generator, shape: list[int]) -> np.ndarray:
    if len(shape) < 2:
        return rng.uniform(0.7, 1.3, shape).astype(np.float32)
    return (rng.standard_normal(shape) * math.sqrt(2.0 / math.prod(shape[1:]))).astype(np.float32)


def _light(source: str) -> BackendCase:
    model = reweighted(onnx.load(DATA / f"{source}.onnx"))
    names, feeds = _real_inputs(model), {}
    for tensor in model.graph.input:
        if tensor.name in names:
            shape = [dim.dim_value for dim in tensor.type.tensor_type.shape.dim]
            feeds[tensor.name] = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    return BackendCase(source, model, (feeds,), (None,))
