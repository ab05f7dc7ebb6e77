"""Modules with their examples: what they are called, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.partition.torch.source import answer_names, numpy_name, open_program, read_source
from tests.torch_modules import Pair, Wrapped, sound


class Many(nn.Module):
    """All kinds of parameters."""

    def forward(self, x: Tensor, *rest: Tensor, d: dict[str, Any], flag: bool = False, **more: Tensor) -> Tensor:
        """The sum of everything."""
        return x + sum(rest) + d["a"] + d["b"][0] + more["z"]


def test_inputs_are_named_by_parameter_and_path() -> None:
    """Tensors are named after what callers write; containers give paths; other arguments are constants."""
    with pytest.raises(InvalidInput, match="do not fit the forward"):
        read_source(Many().eval(), {"x": torch.ones(2)})
    one = torch.ones(2)
    source = read_source(Many().eval(), {"x": one, "d": {"a": one, "b": (one, 3)}, "flag": True, "z": one})
    assert source.names == ("x", "d.a", "d.b.0", "z")
    assert source.name == "Many"
    called = source.called()
    assert torch.equal(called(one, one, one, one), 4 * one)


def test_positional_arguments() -> None:
    """A tuple is positional arguments; those beyond the named ones are numbered; a tensor alone is the first."""

    class Rest(nn.Module):
        def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
            return x + sum(rest)

    one, module = torch.ones(2), Rest().eval()
    assert read_source(module, (one, one, one)).names == ("x", "rest_0", "rest_1")
    assert read_source(module, one).names == ("x",)
    assert read_source(module, np.ones(2, np.float32)).names == ("x",)


def test_several_requests() -> None:
    """A list holds several requests; all of their values are kept."""
    source = read_source(Wrapped(torch.sin), [{"x": torch.zeros(1, 2)}, {"x": torch.ones(1, 2)}])
    assert [array.tolist() for array in source.examples["x"]] == [[[0.0, 0.0]], [[1.0, 1.0]]]
    assert source.rows() == [[source.examples["x"][0]], [source.examples["x"][1]]]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (None, "needs example_inputs"),
        ([], "empty"),
        ((3,), "hold no tensor"),
        ([{"x": torch.ones(1)}, {"x": [torch.ones(1), torch.ones(1)]}], "do not have the same arguments"),
    ],
)
def test_examples_that_cannot_be(inputs: Any, said: str) -> None:
    """Missing, empty, tensorless and uneven examples are refused in one line."""
    with pytest.raises(InvalidInput, match=said):
        read_source(Wrapped(torch.sin), inputs)


def test_device_is_checked() -> None:
    """A device that torch does not know, or does not have, is the caller's mistake."""
    with pytest.raises(InvalidInput, match="none that torch knows"):
        read_source(Wrapped(torch.sin), torch.ones(1), device="teapot")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="sees no CUDA device"):
            read_source(Wrapped(torch.sin), torch.ones(1), device="cuda")
    assert read_source(sound("tied").module(), torch.ones(2, 8), device="cpu").name == "Tied"


def test_training_mode_is_refused() -> None:
    """Dropout would be served as it trains: a module in training, or a part, is named; exported ones are fixed."""
    x, module = torch.ones(2, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    with pytest.raises(ModelError, match=r"module 'Sequential' is in training mode: .*call eval\(\) first"):
        read_source(module, x)
    module.eval()[1].train()
    with pytest.raises(ModelError, match=r"'Sequential': its part '1' \(Dropout\) is in training mode: .*call eval"):
        read_source(module, x)
    assert read_source(module.eval(), x).names == ("input",)
    program = torch.export.export(module, (x,))
    assert read_source(program.module(), x).names == ("input",)
    assert read_source(program, None).names == ("input",)


def test_a_list_of_layers_has_no_mode() -> None:
    """What only holds layers does nothing itself, so its flag is not looked at."""
    module = Wrapped(torch.sin)
    module.held = nn.ModuleList([nn.Linear(2, 2).eval()])
    assert module.held.training
    assert read_source(module, torch.ones(1)).names == ("x",)


def test_exported_program_brings_examples(tmp_path: Path) -> None:
    """An exported program is a module that knows its own inputs, also from a file, which gives it its name."""
    module, batch = sound("tied").module(), sound("tied").batch(2)
    program = torch.export.export(module, (), batch)
    assert read_source(program, None).names == ("x",)
    torch.export.save(program, str(tmp_path / "net.pt2"))
    source = read_source(tmp_path / "net.pt2", None)
    assert (source.name, source.names) == ("net", ("x",))
    assert torch.allclose(source.called()(batch["x"]), module(**batch))


def test_unreadable_programs(tmp_path: Path) -> None:
    """A missing and a damaged file are named."""
    with pytest.raises(ModelError, match="no such file"):
        open_program(tmp_path / "none.pt2")
    (tmp_path / "bad.pt2").write_bytes(b"PK nothing")
    with pytest.raises(ModelError, match=r"bad\.pt2: not a readable exported program"):
        open_program(tmp_path / "bad.pt2")


def test_answers_are_named() -> None:
    """Keys and fields, numbers in plain tuples, and a suffix where an input has the name already."""
    one = torch.ones(1)
    assert answer_names(one, ()) == ("output",)
    assert answer_names((one, None, [one]), ()) == ("output_0", "output_2.0")
    assert answer_names({"a": one, "p": Pair(one, 3)}, ("a",)) == ("a_out", "p.first")


def test_numpy_has_no_bfloat16() -> None:
    """bfloat16 goes by the name of float32; what NumPy has no type for is said to have none."""
    assert numpy_name(torch.bfloat16) == "float32"
    assert numpy_name(torch.int16) == "int16"
    assert numpy_name(torch.float8_e5m2) is None
