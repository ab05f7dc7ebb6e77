"""Kinds of fault that need more than a model and its requests: side files, overridden weights, chance, no rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import lazybatch as lb
from lazybatch.errors import InvalidInput
from tests import serving
from tests.cases.case import rows
from tests.cases.catalogue import CASES
from tests.loading import load_fine
from tests.onnx_models import F32, I64, build, const, floats, mlp, op, save, value
from tests.whole import Whole, aligned, assert_close_to_peak, assert_same_bits

X4, Y4 = value("x", F32, ["N", 4]), value("y", F32, ["N", 4])


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def _shared_weight(width: int) -> onnx.ModelProto:
    """One square weight used by two layers."""
    nodes = [op("MatMul", "x w", "a"), op("Tanh", "a", "b"), op("MatMul", "b w", "c"), op("Add", "c bias", "y")]
    consts = [const("w", floats(5, width, width, scale=0.1)), const("bias", np.arange(width, dtype=np.float32))]
    return build(nodes, [value("x", F32, ["N", width])], [value("y", F32, ["N", width])], consts)


@pytest.mark.parametrize("location", ["weights.dat", "w e i g h t s", "deep/weights.bin"])
def test_weights_in_a_side_file(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The side file is found from the model's folder, wherever the process stands, and by a relative path too."""
    home = tmp_path / "home"
    (home / location).parent.mkdir(parents=True)
    path = home / "model.onnx"
    onnx.save(_shared_weight(64), path, save_as_external_data=True, location=location, size_threshold=0)
    assert path.stat().st_size < 2000, "the weights must lie outside"
    x = floats(1, 3, 64)
    wanted = Whole(path).run({"x": x})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert_same_bits(load_fine(path).run(aligned({"x": x})), wanted, "absolute path")
    assert_same_bits(load_fine(Path("../home/model.onnx")).run(aligned({"x": x})), wanted, "relative path")


def test_a_shared_weight_is_stored_once(tmp_path: Path) -> None:
    """Two nodes that use one weight do not make two copies of it on disk."""
    model = load_fine(save(_shared_weight(256), tmp_path / "shared.onnx"))
    assert len(model.graph) > 1
    assert_same_bits(
        model.run(aligned({"x": floats(2, 2, 256)})), Whole(tmp_path / "shared.onnx").run({"x": floats(2, 2, 256)}), ""
    )
    stored = sum(file.stat().st_size for file in model.partition.directory.rglob("*") if file.is_file())
    assert stored < 1.5 * 256 * 256 * 4, f"{stored} bytes for a weight of {256 * 256 * 4}"


@pytest.mark.parametrize("ir", [3, 8])
def test_weights_listed_as_inputs(ir: int, tmp_path: Path) -> None:
    """Callers are asked for x only; overriding a weight, which IR 4 allows, is refused by name, never ignored."""
    inputs = [value("x", F32, ["N", 2]), value("w", F32, [2, 2]), value("b", F32, [2])]
    consts = [const("w", np.eye(2, dtype=np.float32)), const("b", np.array([10, 20], np.float32))]
    nodes = [op("MatMul", "x w", "a"), op("Add", "a b", "y")]
    proto = build(nodes, inputs, [value("y", F32, ["N", 2])], consts, opset=8, ir=ir)
    model = load_fine(save(proto, tmp_path / "listed.onnx"))
    assert model.joinable
    assert model.partition.inputs == ("x",)
    x = np.array([1, 2], np.float32)
    with lb.LazyBatcher(model, policy="graph") as batcher:
        np.testing.assert_array_equal(batcher.predict({"x": x})["y"], [11, 22])
        with pytest.raises(InvalidInput, match="'b'"):
            batcher.predict({"x": x, "b": np.zeros(2, np.float32)})


@pytest.mark.parametrize("kind", ["uniform", "bernoulli", "dropout", "multinomial"])
def test_answers_by_chance(kind: str, tmp_path: Path) -> None:
    """A random operator: never joined, the reason names it, and it can still be served."""
    nodes, consts = {
        "uniform": ([op("RandomUniformLike", "x", "r"), op("Add", "x r", "y")], {}),
        "bernoulli": ([op("Sigmoid", "x", "a"), op("Bernoulli", "a", "d"), op("Add", "x d", "y")], {}),
        "dropout": ([op("Dropout", "x half on", "y")], {"half": 0.5, "on": np.array(True)}),
        "multinomial": ([op("Multinomial", "x", "d", sample_size=4), op("Cast", "d", "y", to=F32)], {}),
    }[kind]
    proto = build(nodes, [X4], [Y4], [const(name, array) for name, array in consts.items()])
    model = load_fine(save(proto, tmp_path / "chance.onnx"))
    assert not model.joinable
    assert any(word in model.reason for word in ("Random", "Bernoulli", "Dropout", "Multinomial")), model.reason
    (answer,) = serving.together(model, [{"x": floats(1, 4)}])
    assert answer["y"].shape == (4,)


def test_statistics_of_the_batch(tmp_path: Path) -> None:
    """BatchNormalization in training mode: never joined, and the reason names it."""
    names = {"s": 1.0, "b": 0.0, "m0": 0.0, "v0": 1.0}
    nodes = [op("Relu", "x", "a"), op("BatchNormalization", "a s b m0 v0", "y m v", training_mode=1)]
    proto = build(nodes, [X4], [Y4], [const(name, np.full(4, number)) for name, number in names.items()])
    model = load_fine(save(proto, tmp_path / "training.onnx"))
    assert not model.joinable
    assert "BatchNormalization" in model.reason


@pytest.mark.parametrize("kind", ["integer", "convolution"])
def test_a_tolerance_allows_dynamic_quantisation_to_join(kind: str, tmp_path: Path) -> None:
    """What is refused by default may be joined when the user says how much a row may move by, and stays within that."""
    case = next(case for case in CASES if case.name == f"a_scale_from_the_whole_tensor-{kind}")
    path = save(case.model, tmp_path / "quantised.onnx")
    assert not load_fine(path).joinable
    model = load_fine(path, tolerance=0.5)
    assert model.joinable, model.reason
    singles = [{"x": np.abs(single["x"]) / np.abs(single["x"]).max()} for single in case.singles]
    answers = serving.together(model, [{"x": single["x"][0]} for single in singles])
    for single, answer in zip(singles, answers, strict=True):
        wanted = serving.answer(model, Whole(path).run(single))
        assert_close_to_peak(answer, wanted, "within the tolerance", rtol=0.5)


def test_a_batch_of_no_rows(tmp_path: Path) -> None:
    """The whole model takes a batch of 0; so does the chain, with the same empty answer."""
    for name, proto in {
        "mlp": mlp(),
        "nonzero": next(case.model for case in CASES if case.name == "empty_tensors_flow_through-some"),
    }.items():
        path = save(proto, tmp_path / f"{name}.onnx")
        width = 4 if name == "mlp" else 3
        none = {"x": np.zeros((0, width), np.float32)}
        assert_same_bits(load_fine(path).run(none), Whole(path).run(none), name)


def test_unequal_side_inputs_never_share_a_signature(tmp_path: Path) -> None:
    """Rows join only when their unbatched inputs are equal, bit for bit: 0.1 is not 1.0, and -0.0 is not 0.0."""
    proto = build([op("Mul", "x t", "y")], [X4, value("t", F32, [])], [Y4])
    model = load_fine(save(proto, tmp_path / "scaled.onnx"))
    x = floats(1, 4)
    signature = {t: model.admit({"x": x, "t": np.array(t, np.float32)}).signature for t in (1.0, 0.1, 0.0, -0.0)}
    again = model.admit({"x": -x, "t": np.array(1.0, np.float32)}).signature
    assert again == signature[1.0]
    assert signature[0.1] != signature[1.0]
    answers = serving.together(model, [{"x": x, "t": np.array(t, np.float32)} for t in (0.0, -0.0)])
    assert [bool(np.signbit(answer["y"][0])) for answer in answers] == [bool(x[0] < 0), bool(x[0] >= 0)]


def test_lengths_never_share_a_signature(tmp_path: Path) -> None:
    """Sequences of different length are never padded to join; those of one length are."""
    proto = build([op("ReduceMean", "x", "y", axes=[1], keepdims=0)], [value("x", F32, ["N", "T", 4])], [Y4])
    model = load_fine(save(proto, tmp_path / "mean.onnx"))
    signatures = [model.admit({"x": floats(1, t, 4)}).signature for t in (3, 5, 3)]
    assert signatures[0] == signatures[2] != signatures[1]


def test_a_callers_array_may_change_after_submit(tmp_path: Path) -> None:
    """Inputs are copied before submit returns: what the caller does to the array later changes no answer."""
    model = load_fine(save(mlp(), tmp_path / "mlp.onnx"))
    whole = Whole(tmp_path / "mlp.onnx")
    buffer = np.zeros(4, np.float32)
    futures, wanted = [], []
    with lb.LazyBatcher(model, policy="graph", max_batch_size=4, max_delay=0.05) as batcher:
        for single in rows(8, 4):
            buffer[:] = single["x"][0]
            futures.append(batcher.submit({"x": buffer}))
            wanted.append(whole.run(single)["y"][0])
            buffer[:] = np.nan
        for future, want in zip(futures, wanted, strict=True):
            np.testing.assert_allclose(future.result(timeout=30)["y"], want, rtol=1e-5, atol=1e-6)


def test_an_answer_belongs_to_its_caller(tmp_path: Path) -> None:
    """Writing into one answer changes no other, and no later one: answers share no memory, shared outputs included."""
    proto = build([op("Gemm", "x w", "y")], [X4], [Y4, value("w", F32, [4, 4])], [const("w", floats(1, 4, 4))])
    model = load_fine(save(proto, tmp_path / "weight_out.onnx"))
    x = floats(2, 4)
    with lb.LazyBatcher(model, policy="graph") as batcher:
        first, second = batcher.predict_batch([{"x": x}, {"x": x}])
        kept = {name: array.copy() for name, array in second.items()}
        for array in first.values():
            array[...] = -1
        assert_same_bits(second, kept, "the neighbour")
        later = batcher.predict({"x": x})
    np.testing.assert_array_equal(later["w"], kept["w"])
    np.testing.assert_allclose(later["y"], kept["y"], rtol=1e-5)


def test_integers_as_wide_as_they_are(tmp_path: Path) -> None:
    """64-bit integers beyond 2**53 come through exactly (nothing goes by way of floats)."""
    proto = build(
        [op("Add", "x one", "y")], [value("x", I64, ["N", 2])], [value("y", I64, ["N", 2])], [const("one", 1)]
    )
    model = load_fine(save(proto, tmp_path / "wide.onnx"))
    big = np.array([2**62 + 1, -(2**60) - 3])
    for answer in serving.together(model, [{"x": big}, {"x": big - 5}])[:1]:
        np.testing.assert_array_equal(answer["y"], big + 1)


@pytest.mark.parametrize("example", [True, False])
def test_lengths_that_are_equal_by_chance(example: bool, tmp_path: Path) -> None:
    """An operand that is added to every step has the sum's shape at one step only: it is never written over.

    Seen equal where the only example has one step, and where two free lengths were tried together.
    """
    nodes = [op("Tanh", "s", "a"), op("Relu", "x", "b"), op("Add", "a b", "d"), op("Neg", "d", "y")]
    inputs = [value("s", F32, ["N", 1 if example else "S", 64]), value("x", F32, ["N", "T", 64])]
    proto = build(nodes, inputs, [value("y", F32, ["N", "U", 64])])
    given = {"example_inputs": {"s": floats(1, 1, 64), "x": floats(2, 1, 64)}} if example else {}
    path = save(proto, tmp_path / "m.onnx")
    model = load_fine(path, **given)
    assert len(model.graph) == 4
    singles = [{"s": floats(k, 1, 64), "x": floats(k + 9, 5, 64)} for k in range(3)]
    whole = Whole(path)
    with lb.LazyBatcher(model, policy="graph", max_batch_size=4, max_delay=0.05) as batcher:
        for _ in range(3):
            for got, single in zip(batcher.predict_batch(singles), singles, strict=True):
                want = whole.run({name: array[None] for name, array in single.items()})["y"][0]
                np.testing.assert_array_equal(got["y"], want)


def test_a_row_owns_as_many_indices_as_it_has_steps(tmp_path: Path) -> None:
    """Steps flattened into the batch's axis: an example of one step does not make every row one index."""
    nodes = [op("Reshape", "x flat", "h"), op("Neg", "h", "k"), op("Shape", "x", "s"), op("Reshape", "k s", "y")]
    shape = ["N", "T", 8]
    proto = build(nodes, [value("x", F32, shape)], [value("y", F32, shape)], [const("flat", [-1, 8])])
    model = load_fine(save(proto, tmp_path / "m.onnx"), example_inputs={"x": floats(1, 1, 8)})
    assert len(model.graph) > 1
    singles = [{"x": floats(k, 5, 8)} for k in range(3)]
    for got, single in zip(serving.together(model, singles), singles, strict=True):
        np.testing.assert_array_equal(got["y"], -single["x"])
