"""Whole partitions of real structure: pieces run one after another give the whole model's bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort.session import WEIGHTS_FILE, open_session
from lazybatch.partition.manifest import load_partition
from lazybatch.partition.onnx import digest_of, partition_onnx
from lazybatch.partition.pieces import Kind, Partition
from tests.onnx_models import F32, STRING, build, const, floats, mlp, op, save, value
from tests.partition.parts import cut, text_model


def chain(partition: Partition, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The partition's outputs, piece by piece."""
    values = dict(feeds)
    for piece in partition.pieces:
        session = open_session(piece.path, optimise=False)
        got = session.run(list(piece.outputs), {name: values[name] for name in piece.inputs})
        values.update(zip(piece.outputs, got, strict=True))
    return [values[name] for name in partition.outputs]


def assert_same_bits(partition: Partition, feeds: dict[str, np.ndarray]) -> None:
    """Node by node equals the optimised whole."""
    whole = open_session(partition.directory / "whole.onnx", optimise=False).run(list(partition.outputs), feeds)
    for got, want in zip(chain(partition, feeds), whole, strict=True):
        np.testing.assert_array_equal(got, want)


def convolutional() -> onnx.ModelProto:
    """A small residual network: blocked layouts cross its cuts."""
    nodes, consts, last = [], [], "x"
    for k in range(4):
        consts.append(const(f"w{k}", floats(k, 16, 16, 3, 3, scale=0.1)))
        nodes.append(op("Conv", f"{last} w{k}", f"c{k}", pads=[1, 1, 1, 1]))
        nodes.append(op("Relu", f"c{k}", f"r{k}"))
        nodes.append(op("Add", f"r{k} {last}", f"s{k}"))
        last = f"s{k}"
    nodes.append(op("GlobalAveragePool", last, "y"))
    shape = ["N", 16, "H", "W"]
    return build(nodes, [value("x", F32, shape)], [value("y", F32, ["N", 16, 1, 1])], consts)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_blocked_layouts_survive_cuts(tmp_path: Path, rows: int) -> None:
    """A convolutional network is cut within its fused layout, and no bit changes at any batch size."""
    partition = cut(convolutional(), tmp_path)
    assert partition.joinable
    assert len(partition.pieces) > 3
    assert_same_bits(partition, {"x": floats(1, rows, 16, 10, 12)})


def test_captured_values_are_carried(tmp_path: Path) -> None:
    """Branches get what they capture, from inputs, earlier nodes and weights, across cuts."""
    partition = cut(
        """g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1.,2.,3.,4.}>
        { a = Tanh(x) b = Sigmoid(a)
          r = If (c) <then_branch = t () => (float[N,4] p) { p = Add(a, x) },
                      else_branch = e () => (float[N,4] q) { q = Mul(a, w) }>
          y = Add(r, b) }""",
        tmp_path,
    )
    assert len(partition.pieces) > 2
    for flag in (True, False):
        assert_same_bits(partition, {"x": floats(0, 3, 4), "c": np.array(flag)})


def test_awkward_names(tmp_path: Path) -> None:
    """Names with slashes, dots, spaces and other alphabets are values like any other, and never file names."""
    names = ["in/put:0", "../../up", "Éß 数", '{"a": "b"}', "y.1"]
    nodes = [
        helper.make_node(kind, [a], [b])
        for kind, a, b in zip(("Relu", "Neg", "Abs", "Sqrt"), names, names[1:], strict=False)
    ]
    model = build(nodes, [value(names[0], F32, ["N", 2])], [value(names[-1], F32, ["N", 2])])
    partition = cut(model, tmp_path)
    assert {piece.path.parent for piece in partition.pieces} == {partition.directory}
    assert_same_bits(partition, {names[0]: floats(0, 2, 2)})


def test_external_weights_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side files are found from the model's folder, a shared weight is stored once, the result stands on its own."""
    w = floats(0, 64, 64, scale=0.1)
    model = build(
        [op("MatMul", "x w", "a"), op("Tanh", "a", "b"), op("MatMul", "b w", "c"), op("Tanh", "c", "y")],
        [value("x", F32, ["N", 64])],
        [value("y", F32, ["N", 64])],
        [const("w", w)],
    )
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(model, str(folder / "m.onnx"), save_as_external_data=True, location="side", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    partition = partition_onnx("model/m.onnx", "parts", preempt_within_s=1e-9)
    (folder / "side").unlink()
    assert len(partition.pieces) == 4
    assert (tmp_path / "parts" / WEIGHTS_FILE).stat().st_size < 2 * w.nbytes
    assert_same_bits(partition, {"x": floats(1, 2, 64)})


def test_sparse_weights_and_strings(tmp_path: Path) -> None:
    """Sparse initialisers and tensors of text cross cuts."""
    sparse = helper.make_sparse_tensor(
        const("w", np.array([1.0, 2.0], np.float32)), const("w_at", np.array([1, 6], np.int64)), [2, 4]
    )
    model = build(
        [op("MatMul", "x w", "a"), op("Tanh", "a", "y")],
        [value("x", F32, ["N", 2])],
        [value("y", F32, ["N", 4])],
        sparse=[sparse],
    )
    (tmp_path / "a").mkdir()
    assert_same_bits(cut(model, tmp_path / "a"), {"x": floats(0, 3, 2)})
    text = build(
        [op("Identity", "s", "l"), op("StringConcat", "l s", "m"), op("StringConcat", "l m", "y")],
        [value("s", STRING, ["N"])],
        [value("y", STRING, ["N"])],
        opset=20,
    )
    (tmp_path / "b").mkdir()
    partition = cut(text, tmp_path / "b")
    assert partition.joinable
    assert chain(partition, {"s": np.array(["Ab", "C"], dtype=object)})[0].tolist() == ["AbAbAb", "CCC"]


def test_local_functions(tmp_path: Path) -> None:
    """Functions of the model's own are cut through like anything else."""
    model = build(
        [op("twice", "x", "a", domain="own"), op("Tanh", "a", "y")],
        [value("x", F32, ["N", 2])],
        [value("y", F32, ["N", 2])],
        domains={"own": 1},
        functions=[
            helper.make_function("own", "twice", ["p"], ["q"], [op("Add", "p p", "q")], [helper.make_opsetid("", 17)])
        ],
    )
    assert_same_bits(cut(model, tmp_path), {"x": floats(0, 2, 2)})


def test_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    """A model may return an input as it is, or a number fixed at export."""
    partition = cut(
        """g (float[N,4] x) => (float[N,4] y, int64[2] k) <int64[2] v = {3,4}>
        { a = Tanh(x) y = Neg(a) k = Identity(v) }""",
        tmp_path,
    )
    assert partition.joinable
    assert partition.boundaries["k"].kind is Kind.SHARED
    x = floats(0, 2, 4)
    got = chain(partition, {"x": x})
    assert np.array_equal(got[0], -np.tanh(x)) or np.allclose(got[0], -np.tanh(x))
    assert got[1].tolist() == [3, 4]


def test_sequences_inside_are_not_cut_through(tmp_path: Path) -> None:
    """Values that are no tensors may live inside a node, never across a cut."""
    partition = cut(
        """g (float[N,4] x) => (float[N,8] y)
        { a = Tanh(x) s = SequenceConstruct(a, x) c = ConcatFromSequence<axis=1>(s) y = Neg(c) }""",
        tmp_path,
    )
    assert partition.joinable
    assert "s" not in partition.boundaries
    assert_same_bits(partition, {"x": floats(0, 2, 4)})


def test_options_are_checked(tmp_path: Path) -> None:
    """Absurd options are the caller's fault, before anything is read."""
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput, match="preempt_within"):
            partition_onnx("m.onnx", "parts", preempt_within_s=wrong)
    with pytest.raises(InvalidInput, match="tolerance"):
        partition_onnx("m.onnx", "parts", tolerance=-1.0)
    with pytest.raises(InvalidInput, match="example_inputs is empty"):
        cut(mlp(), tmp_path, example_inputs=[])


def test_require_joinable(tmp_path: Path) -> None:
    """Whoever needs joining is told at load why it cannot be had."""
    model = text_model("g (float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }")
    path = save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="rows cannot share a batch: output 'y'"):
        partition_onnx(path, tmp_path / "parts", require_joinable=True)


def test_long_operators_are_reported(tmp_path: Path) -> None:
    """Where the wish cannot be met, the manifest says how long the longest node is."""
    partition = cut(mlp(), tmp_path)
    notes = partition.provenance["notes"]
    assert isinstance(notes, list)
    assert any("the longest node takes" in note for note in notes)


def test_partition_again_in_the_same_directory(tmp_path: Path) -> None:
    """A second, coarser partition leaves nothing of the first behind."""
    fine = cut(mlp(layers=5), tmp_path)
    coarse = cut(mlp(layers=5), tmp_path, preempt_within_s=10.0)
    assert len(fine.pieces) > len(coarse.pieces) == 1
    assert len(list(coarse.directory.glob("piece_*.onnx"))) == 1
    assert load_partition(coarse.directory) == coarse
    assert fine.fingerprint != coarse.fingerprint


def test_digest_covers_external_data(tmp_path: Path) -> None:
    """Changing a side file changes the model's identity."""
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), str(path), save_as_external_data=True, location="side", size_threshold=0)
    before = digest_of(path)
    side = tmp_path / "side"
    data = bytearray(side.read_bytes())
    data[0] ^= 1
    side.write_bytes(bytes(data))
    assert digest_of(path) != before


def test_files_cut_short_are_noticed(tmp_path: Path) -> None:
    """A full disk or a broken copy: which file, at load, so that a cache makes its entry anew."""
    made = cut("g (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Neg(a) }", tmp_path)
    piece = made.pieces[0].path
    piece.write_bytes(piece.read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"{piece.name}: \d+ of \d+ bytes are there"):
        load_partition(made.directory)
