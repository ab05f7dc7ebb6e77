"""The executor: whatever happens to a request's sub-batch, the request gets what it would have got alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lazybatch.errors import ExecutionError, InvalidInput, InvariantError
from lazybatch.executors.base import Row
from lazybatch.executors.ort.executor import OrtExecutor
from lazybatch.executors.ort.model import OrtModel
from lazybatch.partition.pieces import Partition
from tests.executors.partitions import cut, data_dependent, labels, recurrent, residual, rows, shared, windowed

CAPACITY = 5


def residual_row(seed: int) -> dict[str, Any]:
    """A row of `residual`; rows of one model differ in content only."""
    return {"x": np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32), "t": np.float32(2)}


def recurrent_row(seed: int) -> dict[str, Any]:
    """A row of `recurrent`."""
    return {"x": np.random.default_rng(seed).standard_normal(4).astype(np.float32)}


def labels_row(seed: int) -> dict[str, Any]:
    """A row of `labels`."""
    return {"s": [f"row {seed}", "é"], "x": np.array([seed, -seed], np.float32)}


BUILDERS: dict[str, tuple[Callable[[Path], Partition], Callable[[int], dict[str, Any]]]] = {
    "residual": (residual, residual_row),
    "recurrent": (recurrent, recurrent_row),
    "labels": (labels, labels_row),
}


@pytest.fixture(scope="module", params=list(BUILDERS))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[OrtModel, list[Row]]:
    """A model and twelve admitted rows."""
    build, row = BUILDERS[request.param]
    model = OrtModel(build(tmp_path_factory.mktemp(request.param)))
    return model, [model.admit(row(seed)) for seed in range(12)]


@pytest.fixture
def net(tmp_path: Path) -> OrtModel:
    """The residual model."""
    return OrtModel(residual(tmp_path))


def through(executor: OrtExecutor, rows: dict[int, Row], padded: int | None = None, sub_batch: int = 0) -> Any:
    """All nodes, undisturbed."""
    executor.open(sub_batch, rows, padded or len(rows))
    for node in range(len(executor.pieces)):
        executor.run(sub_batch, node)
    return executor.close(sub_batch)


def assert_equal(got: dict[str, Any], want: dict[str, Any], *, bits: bool = False) -> None:
    """Same outputs, types and shapes; values to the last bits, or exactly."""
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        if bits or array.dtype.kind not in "f":
            assert np.array_equal(got[name], array)
        else:
            assert np.allclose(got[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, CAPACITY])
def test_a_batch_is_the_whole_model_on_that_batch(served: tuple[OrtModel, list[Row]], count: int) -> None:
    """Node by node on bound buffers equals one session over the whole at the same batch, bit for bit, every time."""
    model, admitted = served
    executor = model.executor(max_batch_size=CAPACITY)
    net = model.partition
    feeds = {}
    for name in net.inputs:
        boundary = net.boundaries[name]
        values = [row.values[name] for row in admitted[:count]]
        feeds[name] = values[0] if boundary.axis is None else np.stack(values, boundary.axis)
    whole = dict(zip(net.outputs, model.whole_session().run(list(net.outputs), feeds), strict=True))
    for _ in range(3):
        got = through(executor, dict(enumerate(admitted[:count])))
        for row in range(count):
            for name, array in whole.items():
                axis = net.boundaries[name].axis
                assert axis is not None
                share = array.shape[axis] // count
                mine = np.take(array, range(row * share, (row + 1) * share), axis)
                mine = mine if not net.boundaries[name].unit else mine.squeeze(axis)
                assert_equal({name: got[row][name]}, {name: mine}, bits=True)
    assert_equal(model.run(feeds), whole, bits=True)


class Script:
    """Random life of several sub-batches: what is open, where it stands, and what came out."""

    def __init__(self, model: OrtModel, admitted: list[Row], data: st.DataObject) -> None:
        self.executor = model.executor(max_batch_size=CAPACITY)
        self.nodes = len(model.graph)
        self.admitted, self.data = admitted, data
        self.waiting = list(range(len(admitted)))
        self.open: dict[int, tuple[int, list[int]]] = {}
        self.results: dict[int, Any] = {}
        self.next = 0

    def draw(self, options: list[Any]) -> Any:
        """One of these."""
        return self.data.draw(st.sampled_from(options))

    def step(self) -> None:
        """One thing that a scheduler may do now."""
        pairs = [
            (one, other)
            for one, (cursor, mine) in self.open.items()
            for other, (place, theirs) in self.open.items()
            if one != other and cursor == place and len(mine) + len(theirs) <= CAPACITY
        ]
        can = [
            *(["open"] if self.waiting else []),
            *(["run"] * 3 + ["evict", "discard"] if self.open else []),
            *(["merge"] * 4 if pairs else []),
        ]
        match self.draw(can):
            case "open":
                count = self.draw(list(range(1, min(CAPACITY, len(self.waiting)) + 1)))
                ids, self.waiting = self.waiting[:count], self.waiting[count:]
                padded = self.draw(list(range(count, CAPACITY + 1)))
                self.executor.open(self.next, {i: self.admitted[i] for i in ids}, padded)
                self.open[self.next] = (0, ids)
                self.next += 1
            case "run":
                self.advance(self.draw(list(self.open)))
            case "merge":
                target, source = self.draw(pairs)
                self.executor.merge(target, source)
                self.open[target][1].extend(self.open.pop(source)[1])
            case "evict":
                chosen = self.draw(list(self.open))
                cursor, ids = self.open[chosen]
                gone = self.data.draw(st.sets(st.sampled_from(ids), max_size=len(ids) - 1))
                self.executor.evict(chosen, gone)
                self.open[chosen] = (cursor, [i for i in ids if i not in gone])
            case "discard":
                chosen = self.draw(list(self.open))
                self.executor.discard(chosen)
                del self.open[chosen]

    def advance(self, chosen: int) -> None:
        """Run the next node, and close after the last."""
        cursor, ids = self.open[chosen]
        self.executor.run(chosen, cursor)
        self.open[chosen] = (cursor + 1, ids)
        if cursor + 1 == self.nodes:
            results = self.executor.close(chosen)
            assert sorted(results) == sorted(ids)
            self.results.update(results)
            del self.open[chosen]

    def finish(self) -> None:
        """Run whatever is still open to its end."""
        while self.open:
            self.advance(next(iter(self.open)))


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_each_request_gets_its_own_answer(
    served: tuple[OrtModel, list[Row]], data: st.DataObject
) -> None:
    """Any sequence of open, run, merge, evict and discard, padded or not: every finished row is as if run alone."""
    model, admitted = served
    script = Script(model, admitted, data)
    for _ in range(data.draw(st.integers(3, 25))):
        if script.open or script.waiting:
            script.step()
    script.finish()
    lone = model.executor(max_batch_size=1)
    for request, got in script.results.items():
        assert_equal(got, through(lone, {request: admitted[request]})[request])


def test_results_share_no_memory(net: OrtModel) -> None:
    """A result kept while the buffers are used again does not change, and rows do not share arrays."""
    executor = net.executor(max_batch_size=2)
    admitted = [net.admit(residual_row(seed)) for seed in range(4)]
    first = through(executor, {0: admitted[0], 1: admitted[1]})
    kept = {name: array.copy() for name, array in first[0].items()}
    first[1]["c"][:] = 9
    through(executor, {2: admitted[2], 3: admitted[3]})
    assert_equal(first[0], kept, bits=True)


def test_parking_copies_nothing(net: OrtModel) -> None:
    """A sub-batch that waits keeps its memory at its addresses while others come, go and reuse theirs."""
    executor = net.executor(max_batch_size=2)
    admitted = [net.admit(residual_row(seed)) for seed in range(6)]
    alone = through(executor, {0: admitted[0]})
    executor.open(1, {0: admitted[0]}, 1)
    executor.run(1, 0)
    for request in range(1, 6):
        through(executor, {request: admitted[request]}, sub_batch=request + 1)
    for node in range(1, 4):
        executor.run(1, node)
    assert_equal(executor.close(1)[0], alone[0], bits=True)
    assert executor.buffer_sets == 2


def test_bindings_are_made_once(net: OrtModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass of a signature and row count binds nothing anew."""
    executor = net.executor(max_batch_size=3)
    admitted = {seed: net.admit(residual_row(seed)) for seed in range(3)}
    through(executor, admitted)
    through(executor, admitted)
    for piece in executor.pieces:
        monkeypatch.setattr(type(piece), "bind", None)
    through(executor, admitted)


def test_larger_shapes_grow_the_buffers_and_smaller_ones_stay_right(tmp_path: Path) -> None:
    """Signatures of different sizes take turns on the same buffers, with one parked in between."""
    model = OrtModel(residual(tmp_path))
    executor = model.executor(max_batch_size=3)

    def row(width: int) -> Row:
        return model.admit({"x": np.full((3, width), width, np.float32), "t": np.float32(1)})

    lone = {width: through(model.executor(max_batch_size=1), {0: row(width)})[0] for width in (1, 7, 300, 4)}
    executor.open(100, {0: row(7)}, 1)
    executor.run(100, 0)
    for width in (1, 300, 4, 300):
        assert_equal(through(executor, {0: row(width)})[0], lone[width])
    for node in range(1, 4):
        executor.run(100, node)
    assert_equal(executor.close(100)[0], lone[7])


def test_two_sub_batches_may_learn_one_signature_together(net: OrtModel) -> None:
    """One learns the first shapes, another the later ones; the first then binds what it has no room for yet."""
    executor = OrtExecutor(net.partition, net.pieces, max_batch_size=3)
    admitted = [net.admit(residual_row(seed)) for seed in range(4)]
    want = [through(net.executor(max_batch_size=1), {0: row})[0] for row in admitted]
    executor.open(1, {0: admitted[0], 1: admitted[1]}, 2)
    executor.run(1, 0)
    assert_equal(through(executor, {3: admitted[3]}, sub_batch=2)[3], want[3])
    executor.open(3, {2: admitted[2]}, 1)
    executor.run(3, 0)
    executor.merge(3, 1)
    for node in range(1, 4):
        executor.run(3, node)
    for request, got in executor.close(3).items():
        assert_equal(got, want[request])


def test_shapes_that_depend_on_values_run_alone(tmp_path: Path) -> None:
    """A model whose rows cannot be joined is served one row at a time, whatever shapes come out."""
    model = OrtModel(data_dependent(tmp_path))
    executor = model.executor(max_batch_size=8)
    for values in ([1, 0, 2], [0, 0, 0], [1, 1, 1]):
        got = through(executor, {0: model.admit({"x": np.array(values, np.float32)})})[0]
        assert np.array_equal(got["y"], 2 * np.array(np.nonzero([values])))
    row = model.admit({"x": np.zeros(3, np.float32)})
    with pytest.raises(InvariantError, match="1 were planned for"):
        executor.open(1, {0: row, 1: row}, 2)


def gather(directory: Path) -> Partition:
    """y = table[i]: fails where i is out of range."""
    from onnx import helper

    return cut(
        directory,
        [
            [helper.make_node("Add", ["i", "i"], ["j"])],
            [helper.make_node("Gather", ["table", "j"], ["y"])],
        ],
        [rows("i", dtype="int64"), rows("j", dtype="int64"), rows("y")],
        ["i"],
        ["y"],
        {"table": np.arange(10, dtype=np.float32)},
    )


def test_a_failed_node_leaves_everything_usable(tmp_path: Path) -> None:
    """The failure names node and reason; after discard, the same buffers and bindings serve good rows."""
    model = OrtModel(gather(tmp_path))
    executor = model.executor(max_batch_size=2)
    good, bad = model.admit({"i": 3}), model.admit({"i": 77})
    through(executor, {0: good, 1: good})
    for _ in range(2):
        executor.open(5, {0: good, 1: bad}, 2)
        executor.run(5, 0)
        with pytest.raises(ExecutionError, match=r"node 'node1' failed: .*out of data bounds") as caught:
            executor.run(5, 1)
        assert caught.value.__cause__ is not None
        executor.discard(5)
        assert [got["y"] for got in through(executor, {0: good, 1: good}).values()] == [6, 6]
    executor.discard(5)
    assert executor.buffer_sets == 2


def test_inputs_that_are_outputs_pass_through(tmp_path: Path) -> None:
    """An input handed straight to the outputs, and one that nobody reads, are no special case."""
    from onnx import helper

    net = cut(
        tmp_path,
        [[helper.make_node("Add", ["x", "t"], ["y"])]],
        [rows("x", 2), shared("t"), rows("u", 3), shared("k", 2), rows("y", 2)],
        ["x", "t", "u", "k"],
        ["y", "x", "k"],
    )
    model = OrtModel(net)
    executor = model.executor(max_batch_size=2)
    admitted = {
        seed: model.admit({"x": [seed, 1], "t": 1, "u": np.zeros(3, np.float32), "k": np.array([5, 6], np.float32)})
        for seed in range(2)
    }
    got = through(executor, admitted)
    for seed in range(2):
        assert got[seed]["y"].tolist() == [seed + 1, 2]
        assert got[seed]["x"].tolist() == [seed, 1]
        assert got[seed]["k"].tolist() == [5, 6]
    assert not np.shares_memory(got[0]["k"], got[1]["k"])


def test_calls_out_of_order_are_bugs_and_say_so(net: OrtModel) -> None:
    """Each breach of the contract raises InvariantError and changes nothing."""
    executor = net.executor(max_batch_size=3)
    admitted = [net.admit(residual_row(seed)) for seed in range(4)]
    other = net.admit({"x": np.ones((3, 9), np.float32), "t": np.float32(2)})
    executor.open(1, {0: admitted[0], 1: admitted[1]}, 2)
    executor.open(2, {2: admitted[2], 3: admitted[3]}, 2)
    executor.open(3, {4: other}, 1)
    for breach in (
        lambda: executor.open(1, {9: admitted[0]}, 1),
        lambda: executor.open(4, {}, 1),
        lambda: executor.open(4, {9: admitted[0], 8: admitted[1]}, 1),
        lambda: executor.open(4, {9: admitted[0]}, 4),
        lambda: executor.run(1, 1),
        lambda: executor.merge(1, 2),
        lambda: executor.merge(1, 3),
        lambda: executor.evict(1, [0, 1]),
        lambda: executor.evict(1, [7]),
        lambda: executor.close(1),
    ):
        with pytest.raises(InvariantError):
            breach()
    executor.run(1, 0)
    executor.evict(2, [3])
    with pytest.raises(InvariantError, match="same node"):
        executor.merge(1, 2)
    executor.run(2, 0)
    executor.merge(1, 2)
    for node in range(1, 4):
        executor.run(1, node)
    assert sorted(executor.close(1)) == [0, 1, 2]


@pytest.mark.parametrize("size", [0, -3, True, 2.5, None])
def test_absurd_batch_sizes_are_refused(net: OrtModel, size: Any) -> None:
    """The largest batch must be a positive integer."""
    with pytest.raises(InvalidInput, match="max_batch_size"):
        net.executor(max_batch_size=size)


def test_shutdown_frees_the_buffers(net: OrtModel) -> None:
    """After shutdown no buffer is left; the model's sessions serve the next executor."""
    executor = net.executor(max_batch_size=2)
    executor.plan(net.admit(residual_row(0)))
    assert executor.memory().buffers_bytes > 0
    executor.shutdown()
    assert executor.memory().buffers_bytes == 0
    through(net.executor(max_batch_size=2), {0: net.admit(residual_row(0))})


def test_rows_that_fail_alone_fail_in_company(tmp_path: Path) -> None:
    """Two rows of 12 make three windows of 8, the middle one of both: a new signature is tried on one row first."""
    model = OrtModel(windowed(tmp_path))
    executor = model.executor(max_batch_size=CAPACITY)
    twelve = {seed: model.admit({"x": np.full(12, seed, np.float32)}) for seed in range(2)}
    sixteen = {seed: model.admit({"x": np.full(16, seed, np.float32)}) for seed in range(2)}
    for sub_batch in range(2):
        executor.open(sub_batch, twelve, 2)
        with pytest.raises(ExecutionError, match="node 'node0' failed: operator Reshape"):
            executor.run(sub_batch, 0)
        executor.discard(sub_batch)
    for _ in range(2):
        for outputs in through(executor, sixteen, sub_batch=7).values():
            assert_equal(outputs, {"y": np.full(16, 1 / 8, np.float32)})
