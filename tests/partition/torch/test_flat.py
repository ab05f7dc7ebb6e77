"""Flat graphs: names, weights, outputs, and what torch leaves behind that is no computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lazybatch.errors import ExecutionError, ModelError
from lazybatch.partition.tensors import to_array
from lazybatch.partition.torch.flat import Flat, flat_of
from lazybatch.partition.torch.source import read_source
from tests.torch_modules import CASES, Case, Wrapped, sound

X = torch.randn(4, 6)


def flat(given: Case | Callable[..., Any] | nn.Module, inputs: Any = X, axes: dict[str, int] | None = None) -> Flat:
    """The graph of a case, or of a function of one tensor."""
    if isinstance(given, Case):
        given, inputs, axes = given.module(), given.batch(3), dict(given.axes or {})
    module = given if isinstance(given, nn.Module) else Wrapped(given)
    source = read_source(module, inputs)
    return flat_of(source, axes or dict.fromkeys(source.names, 0))


@CASES
def test_graph_computes_what_the_module_computes(case: Case) -> None:
    """At numbers of rows it was not traced with, bit for bit where the module runs the same kernels."""
    graph, module = flat(case), case.module()
    run, _ = graph.watch(())
    for rows in (1, 5):
        batch = case.batch(rows, seed=rows)
        feeds = {name: to_array(value) for name, value in batch.items() if isinstance(value, Tensor)}
        got = run(feeds)
        with torch.inference_mode():
            wanted = torch.utils._pytree.tree_leaves(module(**batch))
        wanted = [value for value in wanted if isinstance(value, Tensor)]
        assert len(wanted) == len(graph.outputs)
        for port, want in zip(graph.outputs, wanted, strict=True):
            array = to_array(want)
            same = np.array_equal(got[port.name], array)
            assert same or (not case.exact and np.allclose(got[port.name], array, atol=1e-5)), port.name


def test_tied_weights_are_one() -> None:
    """A weight with several names is held once, and it is the module's own memory."""
    module = sound("tied").module()
    graph = flat(module, torch.randn(3, 8))
    held = list(graph.root.buffers())
    shared = [tensor for tensor in held if tensor.data_ptr() == module.one.weight.data_ptr()]
    assert len(shared) == 1
    assert len(held) == 4


def test_an_output_that_is_an_input_or_another_output() -> None:
    """Each output is a value of its own, under its own name."""
    graph = flat(lambda x: {"x": x, "a": (y := x.sin()), "b": y})
    assert [port.name for port in graph.outputs] == ["x_out", "a", "b"]
    run, _ = graph.watch(())
    got = run({"x": X.numpy()})
    assert np.array_equal(got["x_out"], X.numpy())
    assert np.array_equal(got["a"], got["b"])


def test_writing_to_the_input_is_no_answer() -> None:
    """A module may write to its input; that changes its answer, and nothing outside."""
    run, _ = flat(lambda x: x.mul_(2.0) + 1.0, X.clone()).watch(())
    given = X.numpy().copy()
    assert np.allclose(run({"x": given})["output"], given * 2 + 1)
    assert np.array_equal(given, X.numpy())


class Counting(nn.Module):
    """Adds how often it was called, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, M) -> (N, M)."""
        self.calls += 1
        return x + self.calls


def test_state_between_requests_is_refused() -> None:
    """A module that writes its buffers when it runs is refused with their name; so is one exported in training."""
    with pytest.raises(ModelError, match=r"writes its buffer .*calls.* call eval\(\)"):
        flat(Counting().eval())
    training = torch.export.export(nn.BatchNorm1d(6).train(), (X,))
    with pytest.raises(ModelError, match=r"writes its buffer .*running_mean.* call eval\(\)"):
        flat_of(read_source(training, None), {})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.shape[0] * 1, "no tensor|a number"),
        (lambda x: 3, "no tensor"),
        (lambda x: x.to(torch.float8_e5m2), "float8"),
    ],
)
def test_answers_that_are_no_tensors(function: Callable[[Tensor], Any], said: str) -> None:
    """Numbers and types that NumPy lacks are refused."""
    with pytest.raises(ModelError, match=said):
        flat(function)


def test_watching_gives_inner_values() -> None:
    """Any value can be watched under its name, sizes too; tuples have no type and are not."""
    graph = flat(lambda x: x.view(-1, 2, x.shape[1] // 2).max(1)[0].reshape(x.shape[0], -1).sin())
    run, types = graph.watch(list(graph.values))
    got = run({"x": X.numpy()})
    assert None in types.values()
    assert set(got) == {name for name, dtype in types.items() if dtype is not None}
    assert all(str(got[name].dtype) == types[name] for name in got)


def test_a_failing_operator_is_told_in_one_line() -> None:
    """What torch raises comes as `ExecutionError`, without its listing of the graph."""
    module = nn.Embedding(4, 2).eval()
    run, _ = flat(module, torch.zeros(3, 2, dtype=torch.int64)).watch(())
    with pytest.raises(ExecutionError, match="index out of range") as caught:
        run({"input": np.full((1, 2), 9)})
    assert "\n" not in str(caught.value)


def test_digest_tells_weights_and_graphs_apart() -> None:
    """The same module twice has one digest; other weights or another graph another one."""
    first, again = flat(sound("tied")), flat(sound("tied"))
    assert first.digest == again.digest
    module = sound("tied").module()
    with torch.no_grad():
        module.one.bias[0] += 1.0
    assert flat(module, torch.randn(3, 8)).digest != first.digest
    assert flat(torch.sin).digest != flat(torch.cos).digest


def test_graphs_are_made_once() -> None:
    """Asking again for the same axes gives the same object, and the same refusal."""
    source = read_source(Wrapped(torch.sin), X)
    assert flat_of(source, {"x": 0}) is flat_of(source, {"x": 0})
    fixed = read_source(Wrapped(lambda x: x.reshape(4, 6)), X)
    errors = []
    for _ in range(2):
        with pytest.raises(Exception, match="fixed number") as caught:
            flat_of(fixed, {"x": 0})
        errors.append(caught.value)
    assert errors[0] is errors[1]
