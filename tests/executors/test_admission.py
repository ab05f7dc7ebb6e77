"""Admission: what is accepted is exact and copied; what is refused is named, with what was expected."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lazybatch.errors import InvalidInput
from lazybatch.executors.admission import admit_row
from lazybatch.partition.pieces import Boundary, Partition, Piece
from tests.executors.partitions import opaque, rows, shared


def taking(*boundaries: Boundary) -> Partition:
    """A partition with these inputs; nothing of it is run."""
    names = tuple(boundary.name for boundary in boundaries)
    piece = Piece("n", Path(), names, ("y",))
    known = {boundary.name: boundary for boundary in (*boundaries, rows("y"))}
    return Partition("net", "f", Path(), (piece,), known, names, ("y",), True, None)


IMAGE = taking(rows("x", 3, None), shared("t"))
GOOD = {"x": np.ones((3, 5), np.float32), "t": np.array(2, np.float32)}


def test_a_good_row_is_copied() -> None:
    """What the caller does to its arrays after admission changes nothing."""
    x = np.ones((3, 5), np.float32)
    row = admit_row(IMAGE, {"x": x, "t": GOOD["t"]})
    x[:] = 0
    assert row.values["x"].sum() == 15
    assert row.size == 5


@pytest.mark.parametrize(
    "x",
    [
        np.ones((5, 3), np.float32).T,
        np.ones((3, 10), np.float32)[:, ::2],
        np.ones((3, 5), ">f4"),
        np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (3, 5), (0, 0)),
        [[1.0] * 5] * 3,
        [[1] * 5] * 3,
    ],
    ids=["transposed", "strided", "big-endian", "broadcast", "floats", "ints"],
)
def test_values_count_not_memory_layout(x: Any) -> None:
    """Any memory layout and byte order, and Python lists that fit exactly, give the same contiguous array."""
    array = admit_row(IMAGE, {"x": x, "t": GOOD["t"]}).values["x"]
    assert array.dtype == np.float32
    assert array.dtype.isnative
    assert array.flags.c_contiguous
    assert array.flags.owndata
    assert array.tolist() == [[1.0] * 5] * 3


@pytest.mark.parametrize("t", [np.float32(2), np.array(2, np.float32), 2.0, 2])
def test_scalars_stand_for_arrays_without_axes(t: Any) -> None:
    """A NumPy scalar of the right dtype, and a Python number, are accepted exactly where a 0-d array is wanted."""
    value = admit_row(IMAGE, {"x": GOOD["x"], "t": t}).values["t"]
    assert isinstance(value, np.ndarray)
    assert value.shape == ()
    assert value == 2
    assert admit_row(IMAGE, {**GOOD, "t": t}).signature == admit_row(IMAGE, GOOD).signature


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0], "dict from input name to array.*'x', 't'.*list"),
        (np.ones((3, 5), np.float32), "dict from input name.*ndarray"),
        ({"x": GOOD["x"]}, "input 't' is missing.*'x', 't'"),
        ({"image": GOOD["x"], "t": 1.0}, "input 'x' is missing.*got 'image', 't'"),
        ({**GOOD, "bias": 1}, "unknown input 'bias'.*takes 'x', 't'"),
        ({**GOOD, 3: 1}, "unknown input 3"),
        ({**GOOD, "w": 1}, "'w' .*is a weight; overriding it is not supported"),
        ({**GOOD, "x": np.ones((3, 5))}, "'x' has dtype float64, expected float32"),
        ({**GOOD, "x": np.ones((3, 5), np.int64)}, "'x' has dtype int64, expected float32"),
        ({**GOOD, "t": np.float64(2)}, "'t' has dtype float64, expected float32"),
        ({**GOOD, "x": np.ones((4, 5), np.float32)}, r"'x' has shape \[4, 5\], expected \[3, any\]$"),
        ({**GOOD, "x": np.ones(5, np.float32)}, r"'x' has shape \[5\], expected \[3, any\]$"),
        ({**GOOD, "x": np.ones((1, 3, 5), np.float32)}, "a batch axis of 1 was left in"),
        ({**GOOD, "x": np.ones((4, 3, 5), np.float32)}, "batch of 4: pass one row.*predict_batch"),
        ({**GOOD, "t": np.ones(1, np.float32)}, r"'t' has shape \[1\], expected \[\]"),
        ({**GOOD, "x": [[1.0, 2.0], [3.0]]}, "'x' is no array of float32"),
        ({**GOOD, "x": None}, "'x' is a NoneType, expected float32"),
        ({**GOOD, "x": "text"}, "'x' is a str, expected float32"),
        ({**GOOD, "x": np.array([["a"]])}, "'x' has dtype str"),
        ({**GOOD, "x": np.array([[None]])}, "'x' has dtype object"),
        ({**GOOD, "x": [[True] * 5] * 3}, "'x' .* bool; they do not fit float32"),
        ({**GOOD, "t": 1e300}, "'t' .* do not fit float32 exactly"),
        ({**GOOD, "t": 2**24 + 1}, "'t' .* do not fit float32 exactly"),
        ({**GOOD, "t": 1j}, "'t' is a complex"),
        ({**GOOD, "x": np.ma.masked_array(GOOD["x"], GOOD["x"] > 0)}, "'x' is a masked array"),
    ],
)
def test_a_bad_row_is_refused_by_name(row: Any, message: str) -> None:
    """Each kind of fault names the input, what was given and what was expected."""
    with pytest.raises(InvalidInput, match=message):
        admit_row(IMAGE, row, weights=["w"])


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("int64", 3, True),
        ("int64", 2**63, False),
        ("int64", 3.0, False),
        ("uint8", 255, True),
        ("uint8", 256, False),
        ("uint8", -1, False),
        ("bool", True, True),
        ("bool", 1, False),
        ("float16", 70000.0, False),
        ("float32", 0.1, True),
        ("float32", float("inf"), True),
        ("float32", float("nan"), True),
        ("float64", 2**53, True),
        ("float64", 2**53 + 1, False),
    ],
)
def test_python_numbers_are_never_changed(dtype: str, value: Any, fits: bool) -> None:
    """Python numbers are taken where they fit; wrapped, truncated or overflowing ones are refused."""
    model = taking(shared("v", dtype=dtype))
    if fits:
        assert admit_row(model, {"v": value}).values["v"].dtype == dtype
    else:
        with pytest.raises(InvalidInput, match="'v'"):
            admit_row(model, {"v": value})


def test_strings_are_strings_only() -> None:
    """Lists and NumPy arrays of str are accepted, bytes and None are not."""
    model = taking(rows("s", None, dtype="object"))
    for given in (["a", "bé"], np.array(["a", "bé"]), np.array(["a", "bé"], object)):
        assert admit_row(model, {"s": given}).values["s"].tolist() == ["a", "bé"]
    with pytest.raises(InvalidInput, match="'s' holds a NoneType, expected strings"):
        admit_row(model, {"s": ["a", None]})
    with pytest.raises(InvalidInput, match="'s' holds a bytes"):
        admit_row(model, {"s": [b"a"]})


def test_signatures_tell_shapes_and_shared_values_apart() -> None:
    """Rows join only with equal shapes and equal unbatched inputs; their own values do not matter."""
    base = admit_row(IMAGE, GOOD).signature
    assert admit_row(IMAGE, {**GOOD, "x": GOOD["x"] * 2}).signature == base
    assert admit_row(IMAGE, {**GOOD, "x": np.ones((3, 6), np.float32)}).signature != base
    assert admit_row(IMAGE, {**GOOD, "t": np.float32(3)}).signature != base
    table = taking(shared("t", None, None))
    one = admit_row(table, {"t": np.zeros((2, 3), np.float32)})
    assert one.signature != admit_row(table, {"t": np.zeros((3, 2), np.float32)}).signature


def test_size_is_the_first_open_dimension() -> None:
    """A length where there is one; 1 where all dimensions are fixed; an axis that rows share several of is kept."""
    assert admit_row(taking(rows("x", 3)), {"x": np.ones(3, np.float32)}).size == 1
    assert admit_row(taking(rows("x", None, 4, None)), {"x": np.ones((7, 4, 9), np.float32)}).size == 7
    several = taking(rows("x", 4, unit=False))
    assert admit_row(several, {"x": np.ones((2, 4), np.float32)}).size == 2


def test_inputs_without_proof_are_taken_whole() -> None:
    """An opaque input is given with all its axes, and rows with different ones never join."""
    model = taking(opaque("x", rank=2))
    one = admit_row(model, {"x": np.ones((1, 3), np.float32)})
    assert one.values["x"].shape == (1, 3)
    assert one.signature != admit_row(model, {"x": np.zeros((1, 3), np.float32)}).signature
    unranked = taking(Boundary("x", "float32", opaque("x").kind))
    assert admit_row(unranked, {"x": np.ones((1, 2, 3), np.float32)}).values["x"].shape == (1, 2, 3)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3, 5),
        torch.ones(5, 3).T,
        torch.ones(3, 5, requires_grad=True),
        torch.nn.Parameter(torch.ones(3, 5)),
        torch.ones(3, 5, dtype=torch.bfloat16),
    ],
    ids=["plain", "transposed", "grad", "parameter", "bfloat16"],
)
def test_tensors_are_taken_as_arrays(x: torch.Tensor) -> None:
    """Whatever model is to have them, and whatever torch would do with them besides; they are copied, too."""
    array = admit_row(IMAGE, {"x": x, "t": torch.tensor(2.0)}).values["x"]
    with torch.no_grad():
        x.zero_()
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert array.tolist() == [[1.0] * 5] * 3


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.ones(3, 5, dtype=torch.float64), "input 'x' has dtype float64, expected float32"),
        (torch.ones(3, 5, dtype=torch.int64), "input 'x' has dtype int64, expected float32"),
        (torch.ones(3, 5).to_sparse(), "input 'x' is a torch tensor that cannot be read as an array: "),
        (torch.ones(3, 5, device="meta"), "input 'x' is a torch tensor that cannot be read as an array: "),
        (torch.ones(3, 5).to(torch.float8_e5m2), "input 'x' is a torch tensor that cannot be read as an array: "),
        ([torch.ones(5, requires_grad=True)] * 3, "input 'x' is no array of float32: "),
    ],
    ids=["float64", "int64", "sparse", "meta", "float8", "list"],
)
def test_refused_tensors(x: Any, says: str) -> None:
    """No value is rounded or cast, and what has no values of a NumPy type is refused by name."""
    with pytest.raises(InvalidInput, match=says):
        admit_row(IMAGE, {"x": x, "t": GOOD["t"]})


def test_tensors_are_no_strings() -> None:
    """Where text is expected, a tensor is refused as numbers are."""
    with pytest.raises(InvalidInput, match="input 's' holds a float, expected strings"):
        admit_row(taking(rows("s", None, dtype="object")), {"s": torch.ones(2, requires_grad=True)})


def test_arrays_are_taken_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be at it: the module is there before its classes are."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert admit_row(IMAGE, GOOD).values["x"].sum() == 15
