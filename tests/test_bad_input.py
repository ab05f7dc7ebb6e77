"""Bad files, requests, tables and options: one clear error of the right class, naming the culprit, and nothing lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import lazybatch as lb
from lazybatch.errors import InvalidInput, LazyBatchError, ModelError, TableMismatch
from tests.onnx_models import BOOL, F32, I64, build, const, mlp, op, save, value
from tests.whole import Whole


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model nothing is wrong with."""
    return lb.load(save(mlp(), tmp_path_factory.mktemp("model") / "mlp.onnx"))


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises((InvalidInput, ModelError), match=r"nowhere\.onnx"):
        lb.load(tmp_path / "nowhere.onnx")


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    """A folder is no model."""
    with pytest.raises((InvalidInput, ModelError), match=str(tmp_path)):
        lb.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 40, 0.5, 0.99])
def test_a_truncated_model(tmp_path: Path, keep: float) -> None:
    """Wherever the file ends early, loading says which file and that it is damaged; it never half-loads."""
    path = save(mlp(), tmp_path / "cut.onnx")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises((InvalidInput, ModelError), match=r"cut\.onnx"):
        lb.load(path)


@pytest.mark.parametrize("content", [b"hello world", b"\x00" * 100, b"PK\x03\x04" + b"x" * 60])
def test_a_file_of_something_else(tmp_path: Path, content: bytes) -> None:
    """Text, zeros, an archive: named as unreadable."""
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises((InvalidInput, ModelError), match=r"other\.onnx"):
        lb.load(path)


def test_an_unknown_operator(tmp_path: Path) -> None:
    """A custom operator ONNX Runtime does not know: its name is in the message."""
    node = op("Frobnicate", "x", "y", domain="acme.ops")
    shapes = [value("x", F32, ["N", 4])], [value("y", F32, ["N", 4])]
    path = save(build([node], *shapes, domains={"acme.ops": 1}), tmp_path / "custom.onnx")
    with pytest.raises(ModelError, match="Frobnicate"):
        lb.load(path)


def test_a_weight_file_that_is_missing(tmp_path: Path) -> None:
    """External data that is gone: the message names the file it looked for."""
    path = tmp_path / "outside.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="weights.dat", size_threshold=0)
    (tmp_path / "weights.dat").unlink()
    with pytest.raises(ModelError, match=r"weights\.dat"):
        lb.load(path)


def test_two_nodes_of_one_name(tmp_path: Path) -> None:
    """ONNX Runtime refuses equal node names; nodes are known by their position here, so it is served right."""
    nodes = [op("Relu", "x", "a", name="same"), op("Neg", "a", "y", name="same")]
    path = save(build(nodes, [value("x", F32, ["N", 2])], [value("y", F32, ["N", 2])]), tmp_path / "twice.onnx")
    with pytest.raises(Exception, match="same"):
        Whole(path)
    x = np.array([[-1, 2], [3, -4]], np.float32)
    np.testing.assert_array_equal(lb.load(path).run({"x": x})["y"], -np.maximum(x, 0))


def test_a_type_error_inside(tmp_path: Path) -> None:
    """A graph whose types do not fit is refused with what ONNX Runtime says of it."""
    nodes = [op("Add", "x k", "y")]
    proto = build(nodes, [value("x", F32, ["N", 1])], [value("y", F32, ["N", 1])], [const("k", 1)])
    with pytest.raises(ModelError, match=r"int64|Add|float"):
        lb.load(save(proto, tmp_path / "types.onnx"))


@pytest.mark.parametrize("thing", [None, 7, 1.5, ["a.onnx"], {"path": "a.onnx"}])
def test_something_that_is_no_model_at_all(thing: Any) -> None:
    """Neither a path nor a callable nor a module."""
    with pytest.raises(InvalidInput, match=r"path|load"):
        lb.load(thing)


def test_a_model_without_a_batch_axis(tmp_path: Path) -> None:
    """It is served, alone and whole, with a reason; its input is given as it is."""
    proto = build([op("Tanh", "x", "y")], [value("x", F32, [3, 4])], [value("y", F32, [3, 4])])
    path = save(proto, tmp_path / "fixed.onnx")
    model = lb.load(path)
    assert not model.joinable
    assert model.reason
    assert "batch" in model.reason
    rows = [np.random.default_rng(k).standard_normal((3, 4)).astype(np.float32) for k in range(4)]
    with lb.LazyBatcher(model, policy="serial") as batcher:
        answers = batcher.predict_batch([{"x": row} for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], Whole(path).run({"x": row})["y"])


# -- requests ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A batcher over two inputs: rows x[N, 4] and a scalar flag."""
    nodes = [op("Tanh", "x", "t"), op("Neg", "x", "n"), op("Where", "c t n", "y")]
    inputs = [value("x", F32, ["N", 4]), value("c", BOOL, [])]
    proto = build(nodes, inputs, [value("y", F32, ["N", 4])])
    path = save(proto, tmp_path_factory.mktemp("model") / "two.onnx")
    with lb.LazyBatcher(lb.load(path), policy="graph") as made:
        yield made


ROW = np.arange(4, dtype=np.float32)
YES = np.array(True)


@pytest.mark.parametrize(
    ("row", "culprit"),
    [
        ({"x": ROW}, "'c'"),
        ({"c": YES}, "'x'"),
        ({}, "'x'|'c'"),
        ({"x": ROW, "c": YES, "z": ROW}, "'z'"),
        ({"X": ROW, "c": YES}, "'x'"),
        ({"x": ROW.astype(np.float64), "c": YES}, "'x'.*float64.*float32"),
        ({"x": ROW.astype(np.int64), "c": YES}, "'x'.*int64.*float32"),
        ({"x": ROW, "c": np.array(1)}, "'c'.*int64.*bool"),
        ({"x": ROW[:3], "c": YES}, r"'x'.*\[3\].*\[4\]"),
        ({"x": ROW[None], "c": YES}, r"'x'.*\[1, 4\].*batch"),
        ({"x": np.stack([ROW, ROW]), "c": YES}, r"'x'.*\[2, 4\].*batch"),
        ({"x": np.float32(1), "c": YES}, r"'x'.*\[\].*\[4\]"),
        ({"x": ROW, "c": np.array([True])}, r"'c'.*\[1\]"),
        ({"x": "text", "c": YES}, "'x'"),
        ({"x": None, "c": YES}, "'x'"),
        ({"x": object(), "c": YES}, "'x'"),
        ({"x": [[1.0], [2.0, 3.0]], "c": YES}, "'x'"),
        ({"x": ROW.astype(complex), "c": YES}, "'x'"),
        ([ROW, YES], "dict"),
        (ROW, "dict"),
        (None, "dict"),
    ],
)
def test_a_wrong_row(batcher: Any, row: Any, culprit: str) -> None:
    """Refused at submit with the input's name, what it was and what was expected; rows before and after are served."""
    before = batcher.submit({"x": ROW, "c": YES})
    with pytest.raises(InvalidInput, match=culprit):
        batcher.submit(row)
    after = batcher.submit({"x": ROW, "c": YES})
    np.testing.assert_allclose(before.result(timeout=30)["y"], np.tanh(ROW), rtol=1e-6)
    np.testing.assert_array_equal(after.result(timeout=30)["y"], before.result()["y"])


@pytest.mark.parametrize("flag", [np.bool_(True), True, np.array(True)])
def test_scalars_where_an_array_of_no_dimensions_is_wanted(batcher: Any, flag: Any) -> None:
    """A NumPy scalar and a Python value are as good as a 0-d array."""
    np.testing.assert_allclose(batcher.predict({"x": ROW, "c": flag})["y"], np.tanh(ROW), rtol=1e-6)


@pytest.mark.parametrize(
    "row", [ROW[::-1][::-1], np.stack([ROW, ROW], 1)[:, 0], ROW.astype(">f4"), ROW.tolist(), np.ma.array(ROW).data]
)
def test_unusual_but_right_rows(batcher: Any, row: Any) -> None:
    """Views with strides, the other byte order, lists: right values in any layout give the right answer."""
    np.testing.assert_allclose(batcher.predict({"x": row, "c": YES})["y"], np.tanh(ROW), rtol=1e-6)


def test_one_wrong_row_in_a_batch_admits_none(batcher: Any) -> None:
    """predict_batch is all or nothing: the message says which row, and none of the others is counted as accepted."""
    good = {"x": ROW, "c": YES}
    with pytest.raises(InvalidInput, match=r"row 1\b.*'x'|'x'.*row 1\b"):
        batcher.predict_batch([good, {"x": ROW[:2], "c": YES}, good])
    assert len(batcher.predict_batch([good, good])) == 2


def test_an_empty_batch(batcher: Any) -> None:
    """No rows are a mistake of the caller, and said so."""
    with pytest.raises(InvalidInput, match=r"empty|no rows"):
        batcher.predict_batch([])


@pytest.mark.parametrize("rows", [None, 3, {"x": ROW, "c": YES}, "ab"])
def test_a_batch_that_is_no_list_of_rows(batcher: Any, rows: Any) -> None:
    """A dict or a number instead of a list of rows."""
    with pytest.raises(InvalidInput):
        batcher.predict_batch(rows)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"sla": -1}, "sla"),
        ({"sla": math.nan}, "sla"),
        ({"sla": "fast"}, "sla"),
        ({"timeout": -0.5}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"deadline": "noon"}, "deadline"),
        ({"deadline": 1.8e9}, "deadline"),
        ({"priority": 1.5}, "priority"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_absurd_limits_of_a_request(batcher: Any, options: dict[str, Any], culprit: str) -> None:
    """Refused at submit, by name."""
    with pytest.raises(InvalidInput, match=culprit):
        batcher.submit({"x": ROW, "c": YES}, **options)
    assert batcher.predict({"x": ROW, "c": YES})["y"].shape == (4,)


def test_a_row_the_model_itself_refuses(tmp_path: Path) -> None:
    """A value only the operator can judge (an index out of range) fails its own row; mates and followers are served."""
    nodes = [op("Gather", "table x", "e"), op("ReduceSum", "e axis", "y", keepdims=0)]
    consts = [const("table", np.arange(12.0).reshape(3, 4)), const("axis", [1])]
    proto = build(nodes, [value("x", I64, ["N", 2])], [value("y", F32, ["N", 4])], consts)
    model = lb.load(save(proto, tmp_path / "table.onnx"))
    with lb.LazyBatcher(model, policy="graph", max_batch_size=4) as batcher:
        good, bad = np.array([0, 2]), np.array([0, 99])
        futures = [batcher.submit({"x": row}) for row in (good, bad, good)]
        with pytest.raises(lb.ExecutionError):
            futures[1].result(timeout=30)
        for future in (futures[0], futures[2], batcher.submit({"x": good})):
            np.testing.assert_array_equal(future.result(timeout=30)["y"], [8, 10, 12, 14])


# -- options and tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": -3}, "max_batch_size"),
        ({"max_batch_size": 2.5}, "max_batch_size"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"max_batch_size": 10**12}, "max_batch_size"),
        ({"queue_capacity": 0}, "queue_capacity"),
        ({"queue_capacity": 3, "max_batch_size": 4}, "queue_capacity"),
        ({"sla": 0}, "sla"),
        ({"sla": -0.05}, "sla"),
        ({"sla": math.inf}, "sla"),
        ({"policy": "fastest"}, "fastest"),
        ({"policy": 3}, "policy"),
        ({"policy": "graph", "max_delay": -1}, "max_delay"),
        ({"table": "table.json"}, "table"),
        ({"table": 5}, "table"),
        ({"workers": 0}, "workers"),
        ({"no_such_option": 1}, "no_such_option"),
    ],
)
def test_absurd_options(perceptron: Any, options: dict[str, Any], culprit: str) -> None:
    """Refused at construction, by name; no thread is left behind."""
    with pytest.raises((InvalidInput, TypeError), match=culprit):
        lb.LazyBatcher(perceptron, **{"policy": "serial", **options})


@pytest.mark.parametrize(
    ("options", "culprit"),
    [({"threads": 0}, "threads"), ({"threads": "two"}, "threads"), ({"providers": "warp"}, "warp")],
)
def test_absurd_options_of_load(tmp_path: Path, options: dict[str, Any], culprit: str) -> None:
    """Refused at load, by name."""
    with pytest.raises((InvalidInput, TypeError), match=culprit):
        lb.load(save(mlp(), tmp_path / "mlp.onnx"), **options)


def _table(model: Any, **changes: Any) -> Any:
    names = tuple(node.name for node in model.graph.nodes)
    times = tuple((1000, 1500) for _ in names)
    fields = {"model": model.name, "nodes": names, "batch_sizes": (1, 4), "median_ns": times, "high_ns": times}
    return lb.LatencyTable(**{**fields, **changes})


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        (lambda m: {"nodes": (*[f"n{k}" for k in range(len(m.graph))], "one_more"),
                    "median_ns": ((1, 2),) * (len(m.graph) + 1), "high_ns": ((1, 2),) * (len(m.graph) + 1)}, "node"),
        (lambda m: {"nodes": tuple(f"other{k}" for k in range(len(m.graph)))}, "other0|node"),
        (lambda m: {"provenance": {"fingerprint": "0" * 64}}, "fingerprint|partition|model"),
        (lambda m: {"provenance": {"machine": {"cpu": "Z80", "cores": 1, "arch": "z80"}}}, "Z80|machine"),
    ],
    ids=["too many nodes", "other nodes", "other partition", "other machine"],
)  # fmt: skip
def test_a_table_that_belongs_elsewhere(perceptron: Any, change: Callable[[Any], dict[str, Any]], culprit: str) -> None:
    """A table of another model, partition or machine is refused at construction, saying what differs."""
    with pytest.raises(TableMismatch, match=culprit):
        lb.LazyBatcher(perceptron, table=_table(perceptron, **change(perceptron)), policy="lazy", sla=0.1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "other"}', '{"format": "lazybatch-latency-table"}'])
def test_a_damaged_table_file(tmp_path: Path, content: str) -> None:
    """The message names the file."""
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=r"table\.json"):
        lb.LatencyTable.load(path)


def test_every_error_is_ours() -> None:
    """One base class catches them all, and the caller's faults are ValueErrors too."""
    assert issubclass(InvalidInput, LazyBatchError)
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(TableMismatch, InvalidInput)
    assert issubclass(ModelError, LazyBatchError)
