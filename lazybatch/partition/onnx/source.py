"""Opening an ONNX file: what is wrong with it is said here, in one line that names the culprit.

Owns: `Source`, and every check made before anything is cut.
Must not know: optimisation, probing, cuts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from lazybatch.errors import ModelError
from lazybatch.executors.ort.session import reason
from lazybatch.partition.proof.ports import LINE_MAX, Port

NUMPY_NAMES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "bool": "bool",
    "string": "object",
}
"""ONNX Runtime's element types that have a NumPy type of the same layout."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model file that could be read. proto: without the bytes of external data."""

    path: Path
    proto: onnx.ModelProto

    @property
    def name(self) -> str:
        """The file's stem: what the model is called."""
        return self.path.stem

    @property
    def folder(self) -> Path:
        """Where external data is looked for."""
        return self.path.parent

    def loadable(self) -> Path | bytes:
        """What the runtime is given: the file itself, or its bytes with node names cleared where two are equal."""
        counts = Counter(node.name for node in self.proto.graph.node if node.name)
        if all(count == 1 for count in counts.values()):
            return self.path
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        for node in copy.graph.node:
            node.name = ""
        data: bytes = copy.SerializeToString()
        return data


def one_line(error: BaseException) -> str:
    """What the runtime said, without its prefixes, paths and line breaks, not too long."""
    cause = error.__cause__ if isinstance(error, ModelError) and error.__cause__ is not None else error
    text = re.sub(r"^\d+ : [A-Z_]+ : ", "", reason(cause))
    text = re.sub(r"^Load model (from .+? )?failed:\s*", "", text)
    text = re.sub(r"/\S+\.(cc|h):\d+ \S+\([^)]*\) ", "", text)
    return text[:LINE_MAX]


def read_source(path: Path) -> Source:
    """Read and check the file. Raises `ModelError` where it is missing, truncated, or its external data is."""
    path = path.resolve()
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path}: not a readable ONNX file: {one_line(error)}") from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError(f"{path}: not a readable ONNX file: it holds no graph with outputs")
    source = Source(path, proto)
    for tensor in external_tensors(proto):
        _check_external(source, tensor)
    return source


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model, of inner graphs too, whose bytes lie in another file."""
    for tensor in external_data_helper._get_all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def external_files(source: Source) -> list[Path]:
    """The files that hold the model's external data, each once."""
    names = {
        entry.value for t in external_tensors(source.proto) for entry in t.external_data if entry.key == "location"
    }
    return [source.folder / name for name in sorted(names)]


def _check_external(source: Source, tensor: onnx.TensorProto) -> None:
    info = {entry.key: entry.value for entry in tensor.external_data}
    file = source.folder / info.get("location", "")
    if not file.is_file():
        raise ModelError(f"{source.path}: weight {tensor.name!r} should lie in {file}, which does not exist")
    end = int(info.get("offset", 0)) + int(info.get("length", 0))
    if file.stat().st_size < end:
        raise ModelError(
            f"{source.path}: weight {tensor.name!r} should end at byte {end} of {file}, which has {file.stat().st_size}"
        )


def ports_of(source: Source, session: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs as the runtime sees them: weights listed as inputs are not among them.

    Raises `ModelError` for sequences, maps, optionals and element types NumPy does not have.
    """
    ranked = {value.name for value in (*source.proto.graph.input, *source.proto.graph.output) if has_rank(value)}
    inputs = tuple(_port(source, "input", arg, arg.name in ranked) for arg in session.get_inputs())
    outputs = tuple(
        _port(source, "output", arg, arg.name in ranked or bool(arg.shape)) for arg in session.get_outputs()
    )
    return inputs, outputs


def has_rank(value: onnx.ValueInfoProto) -> bool:
    """Whether the declaration says how many dimensions the value has."""
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def numpy_name(runtime_type: str) -> str | None:
    """NumPy's name for a runtime type such as "tensor(float)"; None where there is none."""
    if not runtime_type.startswith("tensor("):
        return None
    return NUMPY_NAMES.get(runtime_type[len("tensor(") : -1])


def _port(source: Source, role: str, arg: Any, ranked: bool) -> Port:
    dtype = numpy_name(arg.type)
    if dtype is None:
        raise ModelError(
            f"{source.path}: {role} {arg.name!r} is a {arg.type}; only dense tensors of NumPy's types can be served"
        )
    if not ranked:
        return Port(arg.name, dtype, None)
    dims = tuple(
        d if isinstance(d, int) and d >= 0 else d if isinstance(d, str) and d.strip("?") else None for d in arg.shape
    )
    return Port(arg.name, dtype, dims)
