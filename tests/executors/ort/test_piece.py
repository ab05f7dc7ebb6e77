"""Pieces: bound or free, a node computes the same; failures carry its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from lazybatch.errors import ExecutionError
from lazybatch.executors.ort.piece import OrtPiece, Place, copy_out, run_chain, shape_of, to_python
from lazybatch.executors.ort.session import open_session
from lazybatch.partition.pieces import Partition
from tests.executors.partitions import cut, opaque, residual, rows


def pieces_of(partition: Partition) -> list[OrtPiece]:
    """The runnable nodes of a partition."""
    return [
        OrtPiece.of(piece.name, open_session(piece.path, optimise=False), piece.inputs, piece.outputs, "cpu")
        for piece in partition.pieces
    ]


def test_bound_and_free_runs_agree(tmp_path: Path) -> None:
    """The same node on the same memory gives the same bits, written to the place it was bound to, as often as run."""
    piece = pieces_of(residual(tmp_path))[0]
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    y = np.zeros_like(x)
    call = piece.bind(
        [Place("x", x.dtype, x.shape, x.ctypes.data)],
        [Place("a", y.dtype, y.shape, y.ctypes.data)],
    )
    for _ in range(2):
        x += 1
        call()
        free = piece.run({"x": x})["a"]
        assert shape_of(free) == x.shape
        assert np.array_equal(to_python(free), y)
        copied = np.zeros_like(y)
        copy_out(free, copied)
        assert np.array_equal(copied, y)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_chain_is_the_whole_model(tmp_path: Path, count: int) -> None:
    """Node by node equals one session over the whole, bit for bit, also without rows; outputs own their memory."""
    net = residual(tmp_path)
    feeds = {
        "x": np.random.default_rng(1).standard_normal((count, 3, 5)).astype(np.float32),
        "t": np.array(3, np.float32),
    }
    got = run_chain(pieces_of(net), feeds, net.outputs)
    want = open_session(net.directory / "whole.onnx", optimise=False).run(list(net.outputs), feeds)
    for name, array in zip(net.outputs, want, strict=True):
        assert got[name].flags.owndata
        assert np.array_equal(got[name], array)


def test_strings_and_sequences_pass_from_node_to_node(tmp_path: Path) -> None:
    """What is no tensor of numbers is handed on as Python values, and mixes with tensors."""
    node = helper.make_node
    net = cut(
        tmp_path,
        [
            [node("Identity", ["s"], ["i"])],
            [node("SequenceConstruct", ["i", "i"], ["q"]), node("SequenceAt", ["q", "one"], ["y"])],
        ],
        [opaque("s", "object"), opaque("i", "object"), opaque("y", "object")],
        ["s"],
        ["y"],
        {"one": np.array(1)},
        reason="strings",
    )
    pieces = pieces_of(net)
    assert not any(piece.plain for piece in pieces)
    assert run_chain(pieces, {"s": np.array(["a", "bé"], object)}, ["y"])["y"].tolist() == ["a", "bé"]


def test_failures_name_the_node(tmp_path: Path) -> None:
    """What ONNX Runtime refuses at run time is an ExecutionError with the node and the reason, cause kept."""
    net = cut(
        tmp_path,
        [[helper.make_node("Gather", ["table", "i"], ["y"])]],
        [rows("i", dtype="int64"), rows("y")],
        ["i"],
        ["y"],
        {"table": np.zeros(3, np.float32)},
    )
    piece = pieces_of(net)[0]
    with pytest.raises(ExecutionError, match=r"node 'node0' failed: .*out of data bounds") as caught:
        piece.run({"i": np.array([7])})
    assert caught.value.__cause__ is not None
