"""Made-up rows: shapes and ranges come from the partition, rows differ and may join."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from lazybatch.errors import InvalidInput
from lazybatch.executors.admission import admit_row
from lazybatch.executors.sample import row_bytes, sample_row
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece


def partition(*inputs: Boundary, example: Mapping[str, object] | None = None) -> Partition:
    """A partition of one piece with these inputs."""
    names = tuple(boundary.name for boundary in inputs)
    return Partition(
        model="m",
        fingerprint="f",
        directory=Path(),
        pieces=(Piece("whole", Path("whole.onnx"), names, ()),),
        boundaries={boundary.name: boundary for boundary in inputs},
        inputs=names,
        outputs=(),
        joinable=True,
        reason=None,
        provenance={} if example is None else {"example": example},
    )


def test_declared_shapes_are_enough() -> None:
    """Where only the batch axis is open a row is made of every type; it is admitted, and differs from seed to seed."""
    made = partition(
        Boundary("x", "float32", Kind.ROWS, 0, (None, 3, 4)),
        Boundary("ids", "int64", Kind.ROWS, 1, (5, None)),
        Boundary("flag", "bool", Kind.ROWS, 0, (None, 8)),
        Boundary("text", "object", Kind.ROWS, 0, (None, 2)),
    )
    first, again, second = sample_row(made, 1), sample_row(made, 1), sample_row(made, 2)
    assert {name: value.shape for name, value in first.items()} == {
        "x": (3, 4),
        "ids": (5,),
        "flag": (8,),
        "text": (2,),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], second["x"])
    assert admit_row(made, first).signature == admit_row(made, second).signature


def test_the_example_fills_open_dimensions_and_bounds_integers() -> None:
    """What the model was seen to accept decides open lengths and the range of ids."""
    made = partition(
        Boundary("ids", "int64", Kind.ROWS, 0, (None, None)),
        example={"ids": {"shape": [1, 40], "range": [5, 6]}},
    )
    row = sample_row(made, 0)["ids"]
    assert row.shape == (40,)
    assert set(row.tolist()) == {5, 6}


def test_a_share_of_several_indices_keeps_its_axis() -> None:
    """Where a row owns several indices of the axis, its share keeps the axis."""
    made = partition(
        Boundary("x", "float32", Kind.ROWS, 0, (None, 2), unit=False), example={"x": {"shape": [3, 2], "range": None}}
    )
    assert sample_row(made, 0)["x"].shape == (3, 2)


def test_shared_inputs_are_equal_for_all_seeds() -> None:
    """Rows join only when their shared inputs are equal, so those do not follow the seed."""
    made = partition(
        Boundary("x", "float32", Kind.ROWS, 0, (None, 2)), Boundary("scale", "float32", Kind.SHARED, None, (4,))
    )
    assert np.array_equal(sample_row(made, 1)["scale"], sample_row(made, 2)["scale"])
    assert admit_row(made, sample_row(made, 1)).signature == admit_row(made, sample_row(made, 2)).signature


def test_what_cannot_be_made_up_is_named() -> None:
    """An open shape without an example, an unknown rank, a type NumPy lacks: the input is named."""
    for boundary in (
        Boundary("x", "float32", Kind.ROWS, 0, (None, None)),
        Boundary("x", "float32", Kind.OPAQUE, None, None),
        Boundary("x", "float8e4m3fn", Kind.ROWS, 0, (None, 2)),
    ):
        with pytest.raises(InvalidInput, match="input 'x'"):
            sample_row(partition(boundary), 0)


def test_bytes_are_known_without_values() -> None:
    """They are those of a made-up row; where there could be none, the reason is the same."""
    made = partition(
        Boundary("x", "float32", Kind.ROWS, 0, (None, 3, 4)),
        Boundary("ids", "int64", Kind.ROWS, 0, (None, None)),
        Boundary("scale", "float64", Kind.SHARED, None, ()),
        example={"ids": {"shape": [1, 40], "range": [5, 6]}},
    )
    assert row_bytes(made) == {name: np.asarray(value).nbytes for name, value in sample_row(made, 0).items()}
    with pytest.raises(InvalidInput, match="leaves the shape of input 'x' open"):
        row_bytes(partition(Boundary("x", "float32", Kind.ROWS, 0, (None, None))))
    with pytest.raises(InvalidInput, match="no values can be made up for input 'x' of type complicated"):
        row_bytes(partition(Boundary("x", "complicated", Kind.ROWS, 0, (None, 1))))
