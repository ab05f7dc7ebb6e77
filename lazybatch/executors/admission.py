"""Checks one row of a request against what the model takes, and copies it.

Owns: `admit_row`: every word a caller reads about a wrong row.
Must not know: buffers, sessions, sub-batches.

What is accepted as an array of dtype D: a NumPy array or NumPy scalar of dtype D (in any byte order or memory layout);
a torch tensor of dtype D, wherever it lies (bfloat16, which NumPy does not have, counts as float32); Python numbers,
booleans, strings and (nested) lists of them where NumPy turns them into D without changing a value. Python floats are
rounded to the nearest value of a float type, as everywhere in NumPy, but never to infinity.
Nothing else is cast.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Row
from lazybatch.partition.pieces import Boundary, Kind, Partition
from lazybatch.partition.proof.ports import one_line

_NOTHING: Mapping[str, int] = MappingProxyType({})


def admit_row(partition: Partition, inputs: Any, weights: Collection[str] = ()) -> Row:
    """One row, without batch axis, as arrays of its own.

    weights: names that are weights of the model, for a better refusal. The signature holds the shapes of all inputs
    and the bytes of those every row of a sub-batch must share. The size is the first dimension that the model leaves
    open (a length, most often), or 1.

    Raises `InvalidInput` naming the input and what was expected.
    """
    if not isinstance(inputs, Mapping):
        raise InvalidInput(
            f"a row of model {partition.model!r} is a dict from input name to array "
            f"({', '.join(map(repr, partition.inputs))}), got {type(inputs).__name__}"
        )
    _check_names(partition, inputs, weights)
    values: dict[str, Any] = {}
    size: int | None = None
    for name in partition.inputs:
        boundary = partition.boundaries[name]
        array = values[name] = as_array(boundary, inputs[name])
        expected = row_dims(boundary)
        check_shape(boundary, array, expected)
        if boundary.kind is Kind.ROWS and size is None and expected is not None:
            size = next((have for have, want in zip(array.shape, expected, strict=True) if want is None), None)
    return Row(values, signature_of(partition, values), size=1 if size is None else size)


def signature_of(partition: Partition, values: Mapping[str, Any], free: Mapping[str, int] = _NOTHING) -> Hashable:
    """What must be equal for rows to share a sub-batch: shapes, and the bytes of inputs that all of it share.

    free: inputs one axis of which may differ, with that axis.
    """
    signature: list[Hashable] = []
    for name in partition.inputs:
        shape, axis = values[name].shape, free.get(name)
        signature.append(shape if axis is None else (*shape[:axis], *shape[axis + 1 :]))
        if partition.boundaries[name].kind is not Kind.ROWS:
            signature.append(digest_of(values[name]))
    return tuple(signature)


def row_dims(boundary: Boundary) -> tuple[int | None, ...] | None:
    """The shape one request gives for this input: declared dims, without the axis rows are joined on."""
    dims = boundary.dims
    if dims is None or boundary.kind is not Kind.ROWS or boundary.axis is None or not boundary.unit:
        return dims
    return (*dims[: boundary.axis], *dims[boundary.axis + 1 :])


def _check_names(partition: Partition, inputs: Mapping[Any, Any], weights: Collection[str]) -> None:
    unknown = [name for name in inputs if name not in partition.inputs]
    missing = [name for name in partition.inputs if name not in inputs]
    for name in unknown:
        if name in weights:
            raise InvalidInput(
                f"input {name!r} of model {partition.model!r} is a weight; overriding it is not supported"
            )
    takes = f"model {partition.model!r} takes {', '.join(map(repr, partition.inputs)) or 'no inputs'}"
    if missing:
        given = f", got {', '.join(map(repr, inputs))}" if unknown else ""
        raise InvalidInput(f"input {missing[0]!r} is missing: {takes}{given}")
    if unknown:
        raise InvalidInput(f"unknown input {unknown[0]!r}: {takes}")


def as_array(boundary: Boundary, value: Any) -> NDArray[Any]:
    """The value as an array of its own, of the expected dtype. Raises `InvalidInput`."""
    value = untorched(boundary.name, value)
    if boundary.dtype == "object":
        return _strings(boundary, value)
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"input {boundary.name!r} is a masked array; expected plain {boundary.dtype}")
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.name != boundary.dtype:
            raise InvalidInput(f"input {boundary.name!r} has dtype {array.dtype.name}, expected {boundary.dtype}")
        return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", subok=False)
    return _from_python(boundary, value)


def untorched(name: str, value: Any) -> Any:
    """A torch tensor as an array, maybe of the same memory; anything else as it is.

    Raises `InvalidInput` for a tensor that is none of plain numbers.
    """
    # Whoever has a tensor has imported torch; while another thread is at it, torch is there without its `Tensor`.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or not isinstance(value, tensor):
        return value
    from lazybatch.partition.tensors import to_array

    try:
        return to_array(value)
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(
            f"input {name!r} is a torch tensor that cannot be read as an array: {one_line(error)}"
        ) from error


def _from_python(boundary: Boundary, value: Any) -> NDArray[Any]:
    """Python numbers and lists of them, where no value changes on the way."""
    name, expected = boundary.name, boundary.dtype
    try:
        array = np.array(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidInput(f"input {name!r} is no array of {expected}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"input {name!r} is a {type(value).__name__}, expected {expected} values")
    dtype = np.dtype(expected)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if array.size == 0:
        return cast
    if dtype.kind == "b" or array.dtype.kind == "b":
        exact = dtype.kind == array.dtype.kind
    elif array.dtype.kind == "f":
        exact = dtype.kind not in "iu" and bool(np.array_equal(np.isfinite(cast), np.isfinite(array)))
    else:
        exact = bool(np.array_equal(cast, array)) and (dtype.kind != "f" or bool((cast.astype(object) == array).all()))
    if not exact:
        raise InvalidInput(
            f"input {name!r} was given as Python values that are {array.dtype.name}; they do not fit {expected} exactly"
        )
    return cast


def _strings(boundary: Boundary, value: Any) -> NDArray[Any]:
    """Strings, as an array of Python str."""
    try:
        array = np.array(value, dtype=object)
    except ValueError as error:
        raise InvalidInput(f"input {boundary.name!r} is no array of strings: {error}") from error
    wrong = [type(item).__name__ for item in array.ravel() if not isinstance(item, str)]
    if wrong:
        raise InvalidInput(f"input {boundary.name!r} holds a {wrong[0]}, expected strings")
    return array


def check_shape(boundary: Boundary, array: NDArray[Any], expected: tuple[int | None, ...] | None) -> None:
    """Refuse an array of another shape; None: any, as a whole or per dimension. Raises `InvalidInput`."""
    if expected is None:
        return
    fits = len(expected) == array.ndim and all(
        want is None or want == have for want, have in zip(expected, array.shape, strict=True)
    )
    if fits:
        return
    shown = "[" + ", ".join("any" if dim is None else str(dim) for dim in expected) + "]"
    hint = ""
    axis = boundary.axis
    if boundary.kind is Kind.ROWS and boundary.unit and axis is not None and array.ndim == len(expected) + 1:
        count = array.shape[axis]
        hint = (
            "; a batch axis of 1 was left in: pass one row, without it"
            if count == 1
            else f"; this looks like a batch of {count}: pass one row, without batch axis, or use predict_batch"
        )
    raise InvalidInput(f"input {boundary.name!r} has shape {list(array.shape)}, expected {shown}{hint}")


def digest_of(array: NDArray[Any]) -> bytes:
    """A fingerprint of the content."""
    if array.dtype == object:
        return hashlib.blake2b(repr(array.tolist()).encode(), digest_size=16).digest()
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()
