"""Slots by liveness: no tensor is overwritten while it is needed, and no more buffers than that takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lazybatch.executors.cycle import lives
from lazybatch.executors.ort.slots import assign_slots
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece


def partition(
    pieces: list[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> Partition:
    """A partition of (inputs, outputs, in-place pairs) without files."""
    names = {*inputs, *outputs, *(name for used, made, _ in pieces for name in (*used, *made))}
    return Partition(
        "m",
        "f",
        Path(),
        tuple(Piece(f"n{k}", Path(), used, made, in_place=pairs) for k, (used, made, pairs) in enumerate(pieces)),
        {name: Boundary(name, "float32", Kind.ROWS, 0, (None, 4)) for name in names},
        inputs,
        outputs,
        True,
        None,
    )


def test_a_chain_needs_two_slots() -> None:
    """One tensor handed from node to node ping-pongs between two buffers, however long the chain."""
    names = [f"t{k}" for k in range(9)]
    chain = partition([((a,), (b,), ()) for a, b in pairwise(names)], ("t0",), ("t8",))
    plan = assign_slots(chain, names)
    assert plan.count == 2
    assert [plan.slot_of[name] for name in names] == [0, 1] * 4 + [0]


def test_in_place_pairs_share_a_slot() -> None:
    """The output of a residual add is bound onto its dead input."""
    net = partition([(("x",), ("a",), ()), (("x", "a"), ("b",), (("x", "b"),))], ("x",), ("b",))
    plan = assign_slots(net, ["x", "a", "b"])
    assert plan.slot_of["b"] == plan.slot_of["x"]


def test_an_in_place_pair_whose_input_lives_on_is_not_believed() -> None:
    """A tensor needed later is never written over, whatever the partition claims."""
    net = partition([(("x",), ("a",), (("x", "a"),)), (("x", "a"), ("b",), ())], ("x",), ("b",))
    plan = assign_slots(net, ["x", "a", "b"])
    assert plan.slot_of["a"] != plan.slot_of["x"]


def test_an_in_place_pair_of_other_or_unknown_sizes_is_not_believed() -> None:
    """Tensors that were equal in shape once need not be: their sizes must be known, and be the same."""
    net = partition([(("x",), ("a",), ()), (("x", "a"), ("b",), (("x", "b"),))], ("x",), ("b",))
    for one, other in ((None, None), ((None, 1), (None, 4)), ((None, 1), (None, None)), ((None, 4), None)):
        sizes = {"x": one, "b": other}
        changed = {name: replace(net.boundaries[name], dims=dims) for name, dims in sizes.items()}
        plan = assign_slots(replace(net, boundaries={**net.boundaries, **changed}), ["x", "a", "b"])
        assert plan.slot_of["b"] != plan.slot_of["x"]


def test_outputs_live_to_the_end_and_unused_inputs_not_at_all() -> None:
    """An early output keeps its slot; an input no node reads gets none, unless it is an output itself."""
    net = partition([(("x",), ("a", "y"), ()), (("a",), ("b",), ())], ("x", "unused", "through"), ("y", "b", "through"))
    plan = assign_slots(net, ["x", "unused", "through", "a", "y", "b"])
    assert "unused" not in plan.slot_of
    assert plan.live[2] == {"y", "b", "through"}
    assert len({plan.slot_of[name] for name in ("y", "b", "through")}) == 3


def test_only_the_named_tensors_get_slots() -> None:
    """Tensors handed on as values take no buffer, but are alive all the same."""
    net = partition([(("x",), ("s",), ()), (("s",), ("y",), ())], ("x",), ("y",))
    plan = assign_slots(net, ["x", "y"])
    assert set(plan.slot_of) == {"x", "y"}
    assert plan.live == ({"x"}, {"s"}, {"y"})


@st.composite
def nets(draw: st.DrawFn) -> Partition:
    """Random graphs: each node reads some earlier tensors and makes up to three, some claimed to be in place."""
    made = [f"x{k}" for k in range(draw(st.integers(1, 3)))]
    inputs = tuple(made)
    pieces: list[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]] = []
    for k in range(draw(st.integers(1, 6))):
        used = tuple(draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)))
        new = tuple(f"t{k}_{j}" for j in range(draw(st.integers(1, 3))))
        pairs = ((used[0], new[0]),) if draw(st.booleans()) else ()
        pieces.append((used, new, pairs))
        made.extend(new)
    outputs = tuple(draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True)))
    needed = set(outputs)
    kept = []
    for used, new, pairs in reversed(pieces):
        wanted = tuple(name for name in new if name in needed)
        needed = (needed - set(new)) | set(used)
        kept.append((used, wanted, tuple(pair for pair in pairs if pair[1] in wanted)))
    return partition(kept[::-1], inputs, outputs)


@given(nets())
def test_no_two_live_tensors_share_a_slot(net: Partition) -> None:
    """At every cursor live tensors have slots of their own, and a node never writes over what it reads unless told."""
    plan = assign_slots(net, net.boundaries)
    assert plan.live == lives(net, None).alive
    for live in plan.live:
        slots = [plan.slot_of[name] for name in live]
        assert len(set(slots)) == len(slots)
    for index, piece in enumerate(net.pieces):
        for made in piece.outputs:
            for used in plan.live[index]:
                if plan.slot_of[made] == plan.slot_of[used]:
                    assert (used, made) in piece.in_place
                    assert used not in plan.live[index + 1]
