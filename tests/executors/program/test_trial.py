"""Bodies that are tried with and without their states in place: how far, with how many rows, and what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import lazybatch as lb
from bench.cached_decoder import Decoder
from lazybatch.errors import ModelError
from lazybatch.executors.chain import ChainExecutor
from lazybatch.executors.program import in_place, trial
from lazybatch.executors.program.plan import StagePlan
from lazybatch.executors.program.trial import Trial
from lazybatch.program import Carry, Program, Repeat, Stage
from tests.executors.program.test_in_place import GOOD, ROW_BYTES, SLOTS, body, program
from tests.onnx_models import const, op


def scattering(folder: Path, **changes: Any) -> StagePlan:
    """The plan of a body that scatters into its state, which fails behind its last place."""
    return lb.load(program(body(folder / "body.onnx", GOOD["scattered into"]), **changes)).plans[0]


def noted_positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iterations that rows are tried at from now on."""
    seen: list[int] = []
    step = trial._Side.step

    def noted(self: Any, fed: Any) -> Any:
        seen.extend(fed["position"].tolist())
        return step(self, fed)

    monkeypatch.setattr(trial._Side, "step", noted)
    return seen


class TestHowFar:
    """No iteration is tried that rows could not come to."""

    def test_without_a_maximum(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody says how many iterations there is room for: no more are tried than the state has places."""
        monkeypatch.setattr(in_place, "LARGE", 1)
        seen = noted_positions(monkeypatch)
        scattering(tmp_path, trips_max=None)
        assert max(seen) == SLOTS - 1
        seen.clear()
        plan = scattering(tmp_path, trips_max=None, in_place=False)
        assert in_place.could_be_in_place(plan) == ("past",)
        assert max(seen) == SLOTS - 1

    @pytest.mark.parametrize("slots", [2, 3])
    def test_less_room_than_a_run_takes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
        """Then runs are as short as the room."""
        decoder = Decoder(layers=1, kv_heads=2, slots=slots)
        carry = {name: Carry(output, in_place=True) for name, output in decoder.states.items()}
        loop = Repeat({"token": Carry("token_next", "first"), **carry}, iteration="position", trips="count")
        seen = noted_positions(monkeypatch)
        stage = Stage("decoder", decoder.write(tmp_path / "decoder.onnx"), loop=loop)
        lb.load(Program("small", (stage,), {"word": "decoder.token"}))
        assert max(seen) == 1

    def test_with_a_maximum(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs begin and end within it, even the shortest."""
        for most in (1, 2, SLOTS):
            seen = noted_positions(monkeypatch)
            scattering(tmp_path, trips_max=most)
            assert max(seen) == most - 1


class TestHowMany:
    """Rows that run together, and memory for them."""

    def test_rows_that_are_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where memory holds no two rows, two are tried all the same, where the program says so, and none unasked."""
        plan = scattering(tmp_path)
        unasked = scattering(tmp_path, in_place=False)
        monkeypatch.setattr(in_place, "LARGE", 1)
        for held, most in ((0, 2), (1, 2), (2, 2), (5, 5), (1000, 40)):
            monkeypatch.setattr(trial, "BYTES", held * trial.COPIES * ROW_BYTES)
            assert trial.rows_held(plan.partition) == held
            made = Trial(plan, 40)
            assert [side.chain.store.capacity for side in made._sides] == [most] * 2
            assert len(made._samples) == min(most, trial.DIFFERENT)
            assert made.difference() is None
            made.end()
            assert in_place.could_be_in_place(unasked) == (() if held < 2 else ("past",))

    def test_no_memory_for_the_second(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first gives back what it has."""
        plan = scattering(tmp_path)
        made: list[ChainExecutor[Any]] = []
        ended: list[bool] = []
        chain = plan.model.chain

        def once(**options: Any) -> ChainExecutor[Any]:
            if made:
                raise MemoryError("no room for another")
            made.append(chain(**options))
            monkeypatch.setattr(made[0], "shutdown", lambda: ended.append(True))
            return made[0]

        monkeypatch.setattr(plan.model, "chain", once)
        with pytest.raises(MemoryError, match="no room for another"):
            Trial(plan, 3)
        assert ended == [True]


def late_blanking(decoder: Decoder, path: Path) -> Path:
    """The decoder, but in its first 6 iterations attention goes over the whole cache and adds zeros to its end, so that
    a memory of its own for the next one is blanked behind the position only from then on."""
    model = onnx.load(decoder.write(path))
    graph = model.graph
    for weights in graph.initializer:
        if weights.name in ("w_k0", "w_v0", "sin", "cos"):  # not turned either: a turned 0 may be a negative one
            weights.CopyFrom(const(weights.name, np.full(tuple(weights.dims), weights.name == "cos", np.float32)))
    graph.initializer.extend([const("six", 6), const("last", decoder.slots - 1)])
    cast = next(node for node in graph.node if node.op_type == "Cast")
    cast.input[0] = "place"
    added: Sequence[onnx.NodeProto] = [op("Less", "position six", "early"), op("Where", "early last position", "place")]
    nodes = [*added, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("given_out", [True, False])
def test_states_that_are_given_out_are_watched_for_longer(tmp_path: Path, given_out: bool) -> None:
    """What a few iterations from the start do not show, and what states made up may differ in, is seen nevertheless;
    where nobody is given the state, nothing of it matters."""
    decoder = Decoder(layers=1)
    carry = {name: Carry(output, 0.0, in_place=True) for name, output in decoder.states.items()}
    carry["past_k0"] = Carry("present_k0", 1.0, in_place=True)
    loop = Repeat(
        {"token": Carry("token_next", "first"), **carry},
        iteration="position",
        trips="count",
        trips_max=decoder.slots,
        collect=("token_next",),
    )
    outputs = {"words": "decoder.token_next", **({"keys": "decoder.past_k0"} if given_out else {})}
    path = late_blanking(decoder, tmp_path / "decoder.onnx")
    made = Program("late", (Stage("decoder", path, loop=loop),), outputs)
    if not given_out:
        lb.load(made)
        return
    says = r"where it is, 'present_k0' is not what it is otherwise \(3 rows, iteration 6\)"
    with pytest.raises(ModelError, match=says):
        lb.load(made)
