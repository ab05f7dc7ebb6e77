"""From a module to a partition: cuts, pieces, files, and what is found again later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.partition.manifest import MANIFEST_FILE, load_partition
from lazybatch.partition.torch import load_program, partition_torch, read_source
from lazybatch.partition.torch.build import GRAPH_FILE, PROGRAM_FILE
from lazybatch.partition.torch.cost import dispatch_seconds, measure
from lazybatch.partition.torch.extract import extract, modules
from tests.partition.torch.test_flat import flat
from tests.torch_modules import FINEST_S, fine, sound


def test_pieces_make_up_the_whole() -> None:
    """Every operator is in one piece, in order; a piece takes what earlier ones made, and names its main operator."""
    partition = fine("residual").partition
    known = set(partition.inputs)
    for k, piece in enumerate(partition.pieces):
        assert set(piece.inputs) <= known
        known |= set(piece.outputs)
        assert piece.name.startswith(f"{k:02d}-")
    assert set(partition.outputs) <= known
    assert abs(sum(piece.cost_share for piece in partition.pieces) - 1.0) < 1e-6
    assert any("conv2d" in piece.name for piece in partition.pieces)


def test_weights_are_at_hand() -> None:
    """A plain look-up finds every weight of a piece: the very tensor, which the module knows as its own as well."""
    graph = flat(sound("residual"))
    for module in modules(graph, [1]):
        read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
        own = dict([*module.named_parameters(), *module.named_buffers()])
        assert read
        assert all(module.__dict__[name] is own[name] is getattr(graph.root, name) for name in read)


def test_no_tuple_crosses_a_cut() -> None:
    """What an operator with several results makes is taken apart in the same piece."""
    graph = flat(sound("picks"))
    for model in (fine("picks"), fine("recurrent"), fine("views")):
        for name, boundary in model.partition.boundaries.items():
            assert boundary.dtype != "object", name
    positions = list(range(len(graph.liveness.steps) - 1))
    made = modules(graph, positions)
    assert len(made) == len(extract(graph, positions, (), Path("x"))) == len(positions) + 1


def test_pieces_share_weights() -> None:
    """Weights used by several pieces are one tensor, and the module's own; each piece says what it uses."""
    module = sound("tied").module()
    graph = flat(module, torch.randn(3, 8))
    positions = list(range(len(graph.liveness.steps) - 1))
    pieces = modules(graph, positions)
    users = [piece for piece in pieces if any(b.data_ptr() == module.one.weight.data_ptr() for b in piece.buffers())]
    assert len(users) == 3
    described = extract(graph, positions, (), Path("x"))
    assert sum(piece.weights_bytes > 0 for piece in described) >= 5


def test_costs_follow_the_work() -> None:
    """The operators' shares add up to the whole, and a convolution costs more than a reshape."""
    graph = flat(sound("residual"))
    feeds = {"image": sound("residual").batch(1)["image"].numpy()}
    costs = measure(graph, feeds)
    assert len(costs.per_node) == len(graph.liveness.steps)
    assert abs(sum(costs.per_node) - costs.whole_s) < 1e-9
    assert dispatch_seconds(torch.device("cpu")) > 0


def test_directory_with_its_program(tmp_path: Path) -> None:
    """A partition saved with its program is loaded without the module, and is the same; its graph is readable."""
    case = sound("residual")
    source = read_source(case.module(), case.batch(2))
    made = partition_torch(source, tmp_path / "parts", preempt_within_s=FINEST_S, save_program=True)
    again = load_partition(tmp_path / "parts")
    assert again == made
    assert load_program(again).digest == load_program(made, source).digest == made.provenance["model_sha256"]
    assert "conv2d" in (tmp_path / "parts" / GRAPH_FILE).read_text()


def test_program_missing_or_another(tmp_path: Path) -> None:
    """A directory without its program needs the module, and another module is not taken for it."""
    case = sound("tied")
    source = read_source(case.module(), case.batch(2))
    made = partition_torch(source, tmp_path / "parts")
    with pytest.raises(ModelError, match="was not saved with it; load the module instead"):
        load_program(made)
    module = case.module()
    with torch.no_grad():
        module.scale[0] += 1.0
    with pytest.raises(ModelError, match="not the one that was cut"):
        load_program(made, read_source(module, case.batch(2)))


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    """A directory that holds somebody else's file of the same name is refused, and left as it was."""
    (tmp_path / PROGRAM_FILE).write_text("precious")
    case = sound("tied")
    with pytest.raises(InvalidInput, match=rf"would overwrite {PROGRAM_FILE}"):
        partition_torch(read_source(case.module(), case.batch(2)), tmp_path)
    assert not (tmp_path / MANIFEST_FILE).exists()


def test_options_are_checked(tmp_path: Path) -> None:
    """Impossible numbers are the caller's mistake."""
    source = read_source(sound("tied").module(), sound("tied").batch(2))
    for options in ({"preempt_within_s": 0.0}, {"tolerance": -1.0}):
        with pytest.raises(InvalidInput):
            partition_torch(source, tmp_path, **options)  # type: ignore[arg-type]


def test_granularity_follows_the_wish(tmp_path: Path) -> None:
    """Without a wish a tiny model stays in few nodes, because dispatching them would cost more than running them."""
    case = sound("tokens")
    source = read_source(case.module(), case.batch(2))
    made = partition_torch(source, tmp_path / "parts")
    assert len(made.pieces) < len(fine("tokens").partition.pieces)
