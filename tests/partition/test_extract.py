"""Pieces: what enters and leaves them, what they hold, and which buffers may be one."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from lazybatch.errors import InvalidInput
from lazybatch.partition.manifest import MANIFEST_FILE
from lazybatch.partition.onnx.extract import Shape, claim, extract
from tests.partition.parts import text_model

RESIDUAL = """g (float[N,4] x) => (float[N,4] y) <float[4] w = {1.,2.,3.,4.}>
{ a = Relu(x) b = Mul(a, w) c = Tanh(b) d = Add(c, a) e = Neg(d) y = Mul(e, w) }"""
SEEN = ((1, 4), (1, 4))


def shapes(*names: str) -> dict[str, Shape]:
    """Float values of one shape."""
    return {name: Shape("float32", 2, SEEN) for name in names}


def test_pieces_hold_what_they_read(tmp_path: Path) -> None:
    """Inputs are what was made outside, outputs what somebody still reads, weights those used."""
    graph = text_model(RESIDUAL)
    pieces = extract(graph, [0, 3], shapes(*"xabcdey"), [1.0] * 6, tmp_path)
    assert [(piece.inputs, piece.outputs, piece.operators) for piece in pieces] == [
        (("x",), ("a",), 1),
        (("a",), ("d",), 3),
        (("d",), ("y",), 2),
    ]
    assert sum(piece.cost_share for piece in pieces) == 1.0
    middle = onnx.load(str(pieces[1].path))
    assert [tensor.name for tensor in middle.graph.initializer] == ["w"]
    assert len({piece.name for piece in pieces}) == 3


def test_residual_add_may_write_in_place(tmp_path: Path) -> None:
    """The last node adds into a value that dies there, and all its other readers must have finished before."""
    pieces = extract(text_model(RESIDUAL), [0, 3], shapes(*"xabcdey"), [1.0] * 6, tmp_path)
    assert [piece.in_place for piece in pieces] == [(), (("a", "d"),), ()]


def in_place(text: str, positions: list[int], tmp_path: Path, **other: Shape) -> list[tuple[tuple[str, str], ...]]:
    """The in-place pairs of the pieces of a model whose values are called by single letters."""
    pieces = extract(text_model(text), positions, {**shapes(*"xabcdey"), **other}, [1.0] * 9, tmp_path)
    return [piece.in_place for piece in pieces]


def test_in_place_needs_the_last_use(tmp_path: Path) -> None:
    """A value read later, or returned by the model, must stay as it is."""
    later = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) c = Tanh(a) d = Add(c, a) y = Mul(d, a) }"
    assert in_place(later, [0, 2], tmp_path) == [(), (), ()]
    returned = "g (float[N,4] x) => (float[N,4] a, float[N,4] y) { a = Relu(x) c = Tanh(a) d = Add(c, a) y = Neg(d) }"
    assert in_place(returned, [0, 2], tmp_path) == [(), (), ()]


def test_in_place_spares_the_callers_input(tmp_path: Path) -> None:
    """What the caller gave is never written to."""
    text = "g (float[N,4] x) => (float[N,4] y) { c = Tanh(x) d = Add(c, x) y = Neg(d) }"
    assert in_place(text, [1], tmp_path) == [(), ()]


def test_in_place_needs_equal_shapes(tmp_path: Path) -> None:
    """A broadcast operand is smaller than the result."""
    text = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) c = Tanh(x) d = Add(c, a) y = Neg(d) }"
    assert in_place(text, [0, 2], tmp_path, a=Shape("float32", 2, ((1, 1), (1, 1)))) == [(), (), ()]


def test_in_place_waits_for_other_readers(tmp_path: Path) -> None:
    """A reader that the last node does not depend on could still be running."""
    text = """g (float[N,4] x) => (float[N,4] e, float[N,4] y)
    { a = Relu(x) e = Neg(a) c = Tanh(x) d = Add(c, a) y = Neg(d) }"""
    assert in_place(text, [0, 3], tmp_path) == [(), (), ()]


def test_in_place_minds_other_names_of_a_buffer(tmp_path: Path) -> None:
    """A reshape may hand the same bytes on under another name."""
    text = """g (float[N,4] x) => (float[N,4] y) <int64[2] s = {-1,4}>
    { a = Relu(x) b = Reshape(a, s) c = Tanh(b) d = Add(c, a) y = Neg(d) }"""
    assert in_place(text, [0, 3], tmp_path) == [(), (), ()]


def test_value_added_to_itself(tmp_path: Path) -> None:
    """Both operands the same buffer: left alone."""
    text = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) d = Add(a, a) y = Neg(d) }"
    assert in_place(text, [0, 1], tmp_path) == [(), (), ()]


def test_claim_leaves_strangers_alone(tmp_path: Path) -> None:
    """Files of an earlier partition go, others stay."""
    for name in ("piece_000.onnx", "piece_017.onnx", "whole.onnx", "weights.bin", "notes.txt", MANIFEST_FILE):
        (tmp_path / name).write_text("x")
    claim(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes.txt", MANIFEST_FILE]
    claim(tmp_path)  # also after a partition that came to nothing


def test_claim_deletes_nothing_that_no_partition_left(tmp_path: Path) -> None:
    """A directory somebody else keeps a weights.bin in, and a model that is called whole.onnx itself."""
    weights, whole = tmp_path / "weights.bin", tmp_path / "whole.onnx"
    weights.write_text("precious")
    with pytest.raises(InvalidInput, match=r"would overwrite weights\.bin"):
        claim(tmp_path)
    weights.rename(whole)
    (tmp_path / MANIFEST_FILE).write_text("x")
    with pytest.raises(InvalidInput, match=r"would overwrite whole\.onnx"):
        claim(tmp_path, [whole])
    assert whole.read_text() == "precious"
