"""The torch executor: sub-batches that are parked, merged and thinned out give every row what it gets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lazybatch.errors import ExecutionError, InvalidInput, InvariantError
from lazybatch.executors.torch.model import TorchModel
from lazybatch.partition.tensors import to_array
from lazybatch.partition.torch.source import output_tensors
from tests.serving import interleaved, together
from tests.torch_modules import CASES, Case, alone, fine, load_fine, sound

ROWS = 12


def expected(case: Case, model: TorchModel, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """What the module itself answers to each row alone, without the batch axis."""
    module, made = case.module(), []
    for row in case.rows(batch, ROWS):
        values = [to_array(value) for value in output_tensors(alone(module, case, row, batch))]
        answer = {}
        for name, value in zip(model.partition.outputs, values, strict=True):
            axis = model.partition.boundaries[name].axis
            assert axis is not None
            answer[name] = value.squeeze(axis)
        made.append(answer)
    return made


def check(got: dict[str, Any] | None, want: dict[str, Any]) -> None:
    """Equal shapes and types; values to within what kernels of other batch sizes differ by."""
    assert got is not None
    assert list(got) == list(want)
    for name, array in want.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        assert np.allclose(got[name], array, rtol=1e-4, atol=1e-5), name


def walk(executor: Any, model: TorchModel, sub_batch: int) -> None:
    """All nodes of one sub-batch."""
    for node in range(len(model.graph)):
        executor.run(sub_batch, node)


@CASES
def test_one_batch(case: Case) -> None:
    """All rows in one sub-batch, node by node."""
    model, batch = fine(case.name), case.batch(ROWS, seed=3)
    answers = together(model, list(case.rows(batch, ROWS)), max_batch_size=ROWS)
    for got, want in zip(answers, expected(case, model, batch), strict=True):
        check(got, want)


@CASES
@pytest.mark.parametrize("seed", range(3))
def test_preempted_merged_and_thinned_out(case: Case, seed: int) -> None:
    """Newcomers preempt, catch up and merge; rows are cancelled, batches padded; the others' answers are their own."""
    model, batch = fine(case.name), case.batch(ROWS, seed=seed)
    rows = list(case.rows(batch, ROWS))
    answers, merges = interleaved(model, rows, seed, max_batch_size=6, evict=0.05 * seed)
    assert merges > 0 or len(model.graph) < 6
    wanted = expected(case, model, batch)
    for got, want in zip(answers, wanted, strict=True):
        if got is not None:
            check(got, want)
    assert any(answer is not None for answer in answers)


def test_answers_own_their_memory() -> None:
    """What a caller does to an answer reaches neither other rows, nor later ones, nor the weights."""
    model, case = fine("residual"), sound("residual")
    rows = list(case.rows(case.batch(2), 2))
    first = together(model, rows)
    first[0]["output"][:] = 7.0
    assert not np.any(first[1]["output"] == 7.0)
    second = together(model, rows)
    assert np.array_equal(second[1]["output"], first[1]["output"])
    assert not np.any(second[0]["output"] == 7.0)


def test_views_are_made_solid_at_cuts() -> None:
    """A parked value holds its own memory and no more, so it may wait and be merged."""
    model, case = fine("views"), sound("views")
    executor = model.executor(max_batch_size=4)
    executor.open(0, dict(enumerate(map(model.admit, case.rows(case.batch(3), 3)))), 3)
    for node in range(len(model.graph)):
        executor.run(0, node)
        for value in executor._live[0].values.values():
            if isinstance(value, Tensor) and node:
                assert value.untyped_storage().nbytes() == value.numel() * value.itemsize
    executor.shutdown()


def test_a_failing_node_names_itself() -> None:
    """What torch raises comes with the node's name; the sub-batch can be discarded, and the next one runs."""
    model, case = fine("tokens"), sound("tokens")
    rows = [model.admit(row) for row in case.rows(case.batch(2), 2)]
    rows[1].values["ids"][0] = 99
    executor = model.executor(max_batch_size=4)
    executor.open(0, {0: rows[0], 1: rows[1]}, 2)
    with pytest.raises(ExecutionError, match=r"node '.*' failed: index out of range"):
        walk(executor, model, 0)
    executor.discard(0)
    executor.open(1, {0: rows[0]}, 1)
    walk(executor, model, 1)
    assert set(executor.close(1)) == {0}
    executor.shutdown()


def test_order_of_calls_is_kept() -> None:
    """Calls out of order are our own mistakes, and caught at once."""
    model, case = fine("tied"), sound("tied")
    row = model.admit(next(case.rows(case.batch(1), 1)))
    executor = model.executor(max_batch_size=2)
    executor.open(0, {0: row}, 1)
    for call in (
        lambda: executor.open(0, {1: row}, 1),
        lambda: executor.open(1, {1: row}, 3),
        lambda: executor.run(0, 1),
        lambda: executor.evict(0, [0]),
        lambda: executor.close(0),
    ):
        with pytest.raises(InvariantError):
            call()
    executor.open(1, {1: row}, 1)
    executor.run(1, 0)
    with pytest.raises(InvariantError, match="same node"):
        executor.merge(0, 1)
    with pytest.raises(InvalidInput, match="max_batch_size"):
        model.executor(max_batch_size=0)


def test_memory_is_planned() -> None:
    """Weights count once however many names they have; what is alive between nodes grows with the batch."""
    model = fine("tied")
    small, large = model.executor(max_batch_size=2).memory(), model.executor(max_batch_size=8).memory()
    module = sound("tied").module()
    wanted = sum(t.nbytes for t in (module.one.weight, module.one.bias, module.two.bias, module.scale))
    assert small.weights_bytes == wanted
    assert large.buffers_bytes == 4 * small.buffers_bytes > 0


def test_inference_only() -> None:
    """No graph for gradients is kept, and the module's parameters still can be trained."""
    module = sound("tied").module()
    model = load_fine(module, sound("tied").batch(2))
    feeds = {"x": np.ones((2, 8), np.float32)}
    model.run(feeds)
    assert module.one.weight.requires_grad
    module(torch.ones(2, 8)).sum().backward()
    assert module.one.weight.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("name", ["residual", "tied", "views", "tokens"])
def test_on_a_gpu(name: str) -> None:
    """The same moves on a device of its own, in one stream: answers as on the CPU, to its precision."""
    case = sound(name)
    model = case.load(device="cuda")
    batch = case.batch(ROWS, seed=1)
    answers, _ = interleaved(model, list(case.rows(batch, ROWS)), 1, max_batch_size=6, evict=0.05)
    for got, want in zip(answers, expected(case, fine(name), batch), strict=True):
        for key in got or ():
            assert np.allclose(got[key], want[key], rtol=1e-2, atol=1e-2), key  # type: ignore[index]
    memory = model.executor(max_batch_size=4).memory()
    assert memory.weights_bytes >= 0
    assert memory.scratch_bytes >= 0
