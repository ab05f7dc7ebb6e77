"""Tensors that go round: what is alive where, and which slots change places."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lazybatch.executors.cycle import Cycle, Growth, lives
from lazybatch.executors.ort.slots import assign_slots
from lazybatch.executors.program.in_place import refusal
from lazybatch.partition.pieces import Partition
from tests.executors.ort.test_slots import nets, partition

BODY = partition(
    [
        (("h", "x"), ("a",), ()),
        (("a", "m"), ("b",), ()),
        (("b", "keys"), ("h_next", "y", "key", "unused"), (("b", "h_next"),)),
    ],
    ("h", "x", "m", "keys"),
    ("h_next", "y", "key", "unused"),
)
CYCLE = Cycle(
    carried={"h": "h_next"}, fed=frozenset({"x"}), grown={"keys": Growth("key", 0)}, read=frozenset({"y", "key"})
)


def test_what_is_held_outlives_every_node() -> None:
    """Fixed inputs and what grows are alive everywhere, states until they are read; fed inputs wait for nobody."""
    known = lives(BODY, CYCLE)
    assert CYCLE.held(BODY) == {"m", "keys"}
    assert known.alive == (
        {"h", "x", "m", "keys"},
        {"a", "m", "keys"},
        {"b", "m", "keys"},
        {"h_next", "y", "key", "m", "keys"},
    )
    assert known.moved[0] == {"h", "m", "keys"}
    assert known.moved[1:] == known.alive[1:]


def test_a_state_and_its_next_value_change_places() -> None:
    """In every second iteration; nothing else ever lies where they lie, and all else stays."""
    plan = assign_slots(BODY, BODY.boundaries, CYCLE)
    assert plan.swapped == {"h": "h_next"}
    assert (plan.turned["h"], plan.turned["h_next"]) == (plan.slot_of["h_next"], plan.slot_of["h"])
    own = {plan.slot_of["h"], plan.slot_of["h_next"]}
    assert len(own) == 2
    for name in plan.slot_of:
        if name not in ("h", "h_next"):
            assert plan.slot_of[name] not in own
            assert plan.turned[name] == plan.slot_of[name]


def test_a_state_kept_in_place_needs_one_place() -> None:
    """Its own, which nothing else is ever given, in both turns; the states beside it change places as ever."""
    body = partition(
        [(("past", "h", "x"), ("present", "a"), ()), (("a",), ("h_next", "y"), ())],
        ("past", "h", "x"),
        ("present", "h_next", "y"),
    )
    carried = {"past": "present", "h": "h_next"}
    plan = assign_slots(
        body, body.boundaries, Cycle(carried, frozenset({"x"}), {}, frozenset("y"), frozenset({"past"}))
    )
    plain = assign_slots(body, body.boundaries, Cycle(carried, frozenset({"x"}), {}, frozenset("y")))
    assert (plan.stayed, plan.swapped, plan.count) == ({"past"}, {"h": "h_next"}, plain.count - 1)
    for slots in (plan.slot_of, plan.turned):
        assert slots["past"] == slots["present"] == plan.slot_of["past"]
        assert list(slots.values()).count(slots["past"]) == 2


def test_what_two_states_are_next_is_copied() -> None:
    """One output cannot change places with two inputs, nor an input with another."""
    body = partition([(("g", "h", "x"), ("n",), ())], ("g", "h", "x"), ("n",))
    plan = assign_slots(body, body.boundaries, Cycle({"g": "n", "h": "n"}, frozenset({"x"})))
    assert plan.swapped == {}
    plan = assign_slots(body, body.boundaries, Cycle({"g": "h", "h": "n"}, frozenset({"x"})))
    assert plan.swapped == {"h": "n"}
    assert "h" in plan.live[1]


@given(nets(), st.data())
def test_no_two_live_tensors_share_a_slot_in_either_turn(net: Partition, data: st.DataObject) -> None:
    """Whatever is carried, fed and held, and in whichever turn."""
    roles = {name: data.draw(st.sampled_from(["held", "fed", "carried"]), name) for name in net.inputs}
    carried = {name: data.draw(st.sampled_from(net.outputs)) for name, role in roles.items() if role == "carried"}
    fed = frozenset(name for name, role in roles.items() if role == "fed")
    cycle = Cycle(carried, fed, {}, frozenset(data.draw(st.lists(st.sampled_from(net.outputs)))))
    able = [name for name in carried if refusal(net, cycle, name) is None]
    in_place = frozenset(data.draw(st.lists(st.sampled_from(able)), "in place") if able else ())
    cycle = replace(cycle, in_place=in_place)
    plan = assign_slots(net, net.boundaries, cycle)
    assert in_place <= plan.stayed
    for slots in (plan.slot_of, plan.turned):
        for index, live in enumerate(plan.live):
            known = [slots[name] for name in live if name in slots]
            written_over = {(name, carried[name]) for name in plan.stayed}
            pairs = sum({name, output} <= live for name, output in written_over)
            assert len(set(known)) == len(known) - pairs, index
            assert not pairs or index == 0 or index == len(net.pieces)
        for index, piece in enumerate(net.pieces):
            for made in piece.outputs:
                for used in plan.live[index] & plan.live[index + 1] - {made}:
                    assert slots[made] != slots[used]
