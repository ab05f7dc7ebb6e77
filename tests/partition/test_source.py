"""Model files that cannot be served are refused in one line that names the culprit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from lazybatch.errors import ModelError
from lazybatch.executors.ort.session import open_session
from lazybatch.partition.onnx.source import numpy_name, one_line, ports_of, read_source
from tests.onnx_models import F32, build, const, mlp, op, save, value
from tests.partition.parts import cut, text_model


def test_missing_file(tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    with pytest.raises(ModelError, match=r"gone\.onnx: no such file"):
        read_source(tmp_path / "gone.onnx")


@pytest.mark.parametrize("length", [0, 1, 100, -10])
def test_truncated_file(tmp_path: Path, length: int) -> None:
    """A file cut short anywhere is refused before or by the runtime, never served."""
    path = save(mlp(), tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"m\.onnx"):
        cut(read_source(path).proto, tmp_path)


def test_text_is_no_model(tmp_path: Path) -> None:
    """Any other file is told to be no ONNX file."""
    path = tmp_path / "m.onnx"
    path.write_text("hello, this is no model")
    with pytest.raises(ModelError, match="not a readable ONNX file"):
        read_source(path)


def _with_side_file(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(mlp(), str(path), save_as_external_data=True, location="m.weights", size_threshold=0)
    return path


def test_missing_external_data(tmp_path: Path) -> None:
    """A weight whose side file is missing is named with the file."""
    path = _with_side_file(tmp_path)
    (tmp_path / "m.weights").unlink()
    with pytest.raises(ModelError, match=r"weight 'w0' should lie in .*m\.weights, which does not exist"):
        read_source(path)


def test_short_external_data(tmp_path: Path) -> None:
    """A side file cut short is noticed at load, not when the weight is first read."""
    path = _with_side_file(tmp_path)
    side = tmp_path / "m.weights"
    side.write_bytes(side.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"weight '.*' should end at byte \d+ of .*m\.weights, which has \d+"):
        read_source(path)


def test_unknown_operator(tmp_path: Path) -> None:
    """An operator the runtime does not know is named, on one line."""
    model = build(
        [op("Frobnicate", "x", "y", domain="acme")],
        [value("x", F32, ["N", 2])],
        [value("y", F32, ["N", 2])],
        domains={"acme": 1},
    )
    with pytest.raises(ModelError, match="Frobnicate") as caught:
        cut(model, tmp_path)
    assert "\n" not in str(caught.value)


def test_sequences_are_refused(tmp_path: Path) -> None:
    """Outputs that are no tensors are refused with the name and the type."""
    with pytest.raises(ModelError, match=r"output 's' is a seq\(tensor\(float\)\)"):
        cut("g (float[N,4] x) => (seq(float[N,4]) s) { s = SequenceConstruct(x, x) }", tmp_path)


def test_weights_listed_as_inputs_are_none(tmp_path: Path) -> None:
    """Up to IR version 3 weights stand among the inputs; callers are asked for the others only."""
    for ir in (3, 8):
        model = build(
            [op("MatMul", "x w", "y")],
            [value("x", F32, ["N", 2]), value("w", F32, [2, 2])],
            [value("y", F32, ["N", 2])],
            [const("w", np.eye(2, dtype=np.float32))],
            opset=8,
            ir=ir,
        )
        folder = tmp_path / str(ir)
        folder.mkdir()
        assert cut(model, folder).inputs == ("x",)


def test_equal_node_names_do_no_harm(tmp_path: Path) -> None:
    """Two nodes of one name are told apart by position."""
    model = mlp()
    for node in model.graph.node:
        node.name = "same"
    assert cut(model, tmp_path).joinable


def test_ports(tmp_path: Path) -> None:
    """Dimensions are numbers, symbols, or anonymous; a missing shape is not a shape of rank 0."""
    model = text_model("g (float[N,?,3] x, float s, float[] u) => (float[N,?,3] y) { a = Add(x, s) y = Add(a, u) }")
    model.graph.input[2].type.tensor_type.ClearField("shape")
    source = read_source(save(model, tmp_path / "m.onnx"))
    inputs, _ = ports_of(source, open_session(source.path, optimise=False))
    assert [port.dims for port in inputs] == [("N", None, 3), (), None]


def test_type_names() -> None:
    """Only element types of NumPy's layout have a name."""
    assert numpy_name("tensor(double)") == "float64"
    assert numpy_name("tensor(bfloat16)") is None
    assert numpy_name("seq(tensor(float))") is None


def test_one_line_drops_prefixes() -> None:
    """What the runtime says is shortened to what a user can act on."""
    error = RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Load model from /a/b.onnx failed:Node (n)\n is bad")
    assert one_line(error) == "Node (n) is bad"
