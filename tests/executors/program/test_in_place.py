"""States that the body writes over itself: what is refused, what is proved, and that rows get what they get alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import lazybatch as lb
from bench.cached_decoder import Decoder
from lazybatch.checking.reports import ProgramReport
from lazybatch.errors import ExecutionError, InvalidInput, ModelError
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.ort.model import OrtModel
from lazybatch.executors.program import in_place, trial
from lazybatch.executors.program.in_place import refusal
from lazybatch.executors.program.model import ProgramModel
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece
from lazybatch.program import Carry, Program, Repeat, Stage
from tests.executors.partitions import cut, rows
from tests.executors.program import torch_bodies
from tests.executors.program.cached import alone
from tests.executors.program.programs import Course
from tests.onnx_models import F32, I64, STRING, build, const, floats, op, save, value

SLOTS = 8
STATE = ["B", SLOTS]
SCATTER = op("ScatterElements", "past at given", "present", axis=1)
INDEX = op("Unsqueeze", "position one", "at")
OUTSIDE = [value("given", F32, ["B", 1]), value("position", I64, ["B"]), value("past", F32, STATE)]

ROW_BYTES = 4 + 8 + SLOTS * 4
"""Of all inputs of one row."""
EXAMPLES = {
    "given": floats(5, 2, 1),
    "position": np.array([SLOTS - 1, 0]),
    "past": floats(6, 2, SLOTS),
}


def body(path: Path, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any] = OUTSIDE) -> Path:
    """past [B, SLOTS] -> present, and something of it, y [B, 1]."""
    outputs = [value("present", F32, STATE), value("y", F32, ["B", 1])]
    consts = [
        const("one", [1]),
        const("zero", 0),
        const("step", 1),
        const("mix", floats(3, SLOTS, SLOTS)),
        const("range", list(range(SLOTS))),
    ]
    consts.append(const("back", list(range(SLOTS))[::-1]))
    return save(build(nodes, inputs, outputs, consts, opset=18), path)


def program(path: Path, *, in_place: bool = True, **changes: Any) -> Program:
    """A loop over such a body."""
    given: dict[str, Any] = {
        "carry": {"past": Carry("present", in_place=in_place)},
        "each": {"given": "steps"},
        "iteration": "position",
        "trips_max": SLOTS,
        "collect": ("y",),
    }
    stage = Stage("body", path, loop=Repeat(**{**given, **changes}), examples=EXAMPLES)
    return Program("states", (stage,), {"y": "body.y"})


def total(source: str) -> onnx.NodeProto:
    """y as the sum over a state."""
    return op("ReduceSum", f"{source} one", "y", keepdims=1)


class TestWhatNodesForbid:
    """Told without running anything."""

    def test_why(self) -> None:
        """A state that is read too late, shared, not read, two inputs' next value, or itself an input."""
        names = ("a", "b", "c", "unread")
        pieces = [Piece("first", Path(), ("a", "b"), ("n", "m", "t")), Piece("second", Path(), ("t", "b", "c"), ("p",))]
        known = {name: rows(name, 4) for name in (*names, "n", "m", "t", "p")}
        known["c"] = Boundary("c", "float32", Kind.SHARED)

        def asked(name: str, cycle: Cycle, why: str | None = None) -> str | None:
            partition = Partition("m", "f", Path(), tuple(pieces), known, names, ("n", "m", "p", "a"), why is None, why)
            return refusal(partition, cycle, name)

        assert asked("a", Cycle({"a": "n"})) is None
        assert asked("b", Cycle({"b": "p"})) is None
        assert asked("b", Cycle({"b": "n"})) == "node 'second' reads it after node 'first' has made 'n'"
        assert asked("a", Cycle({"a": "n"}, read=frozenset("a"))) == "it is read after node 'first' has made 'n'"
        assert asked("a", Cycle({"a": "n", "b": "n"})) == "'n', its next value, is also that of 'b'"
        assert asked("b", Cycle({"b": "a"})) == "'a', its next value, is an input of the body"
        assert asked("c", Cycle({"c": "p"})) == "it is no row's own"
        known["b"] = rows("b", None, 4)
        assert "leaves its shape open" in str(asked("b", Cycle({"b": "p"})))
        known["b"] = Boundary("b", "float32", Kind.ROWS, 0)
        assert "leaves its shape open" in str(asked("b", Cycle({"b": "p"})))
        assert asked("unread", Cycle({"unread": "n"})) == "the body does not read it"
        assert "are not joined, and lie in no buffers: it sums" in str(asked("a", Cycle({"a": "n"}), "it sums rows"))

    def test_types_and_shapes(self, tmp_path: Path) -> None:
        """They are those of any other carry."""
        path = body(tmp_path / "body.onnx", [INDEX, SCATTER, total("present")])
        with pytest.raises(ModelError, match=r"stage 'body': state 'past' is .*, but 'y', its next value, is"):
            lb.load(program(path, carry={"past": Carry("y", in_place=True)}))


GOOD = {
    "scattered into": [INDEX, SCATTER, total("present")],
    "read before it is written": [
        total("past"),
        INDEX,
        op("Add", "y given", "g"),
        op("ScatterElements", "past at g", "present", axis=1),
    ],
    "scattered by row and place": [
        op("Shape", "given", "shape", end=1),
        op("Squeeze", "shape", "rows"),
        op("Range", "zero rows step", "order"),
        op("Unsqueeze", "order one", "row"),
        INDEX,
        op("Concat", "row at", "places", axis=1),
        op("Squeeze", "given one", "flat"),
        op("ScatterND", "past places flat", "present"),
        total("present"),
    ],
    "element by element": [
        INDEX,
        op("Equal", "range at", "here"),
        op("Where", "here given past", "present"),
        total("present"),
    ],
}
BAD = {
    "read after it was written": [INDEX, SCATTER, op("GatherElements", "past at", "y", axis=1)],
    "turned round": [
        op("Gather", "past back", "present", axis=1),
        INDEX,
        op("GatherElements", "present at", "z", axis=1),
        op("Add", "z given", "y"),
    ],
}


@pytest.mark.parametrize("case", GOOD)
def test_a_body_that_can(tmp_path: Path, case: str) -> None:
    """It is proved, takes one buffer less, and answers what it answers with two."""
    path = body(tmp_path / "body.onnx", GOOD[case])
    steps = [{"steps": floats(seed, 1 + seed % SLOTS, 1)} for seed in range(20)]
    answers = {}
    memory = {}
    for one in (False, True):
        model = lb.load(program(path, in_place=one), require_joinable=True)
        memory[one] = model.executor(max_batch_size=4).memory().buffers_bytes
        with lb.LazyBatcher(model, policy="continuous", max_batch_size=4) as batcher:
            answers[one] = [row["y"] for row in batcher.predict_batch(steps)]
    for one, other in zip(answers[False], answers[True], strict=True):
        np.testing.assert_array_equal(one, other)
    assert memory[False] - memory[True] >= 2 * 4 * SLOTS * 4


def test_rows_on_another_axis(tmp_path: Path) -> None:
    """Rows move differently there; what is in place stays in place. Text that is collected is compared as text."""
    nodes = [
        op("Unsqueeze", "range one", "places"),
        op("Equal", "places position", "here"),
        op("Squeeze", "given one", "flat"),
        op("Where", "here flat past", "present"),
        op("ReduceSum", "present zero", "y", keepdims=0),
        op("Cast", "position", "text", to=STRING),
    ]
    inputs = [*OUTSIDE[:2], value("past", F32, [SLOTS, "B"])]
    outputs = [value("present", F32, [SLOTS, "B"]), value("y", F32, ["B"]), value("text", STRING, ["B"])]
    consts = [const("one", [1]), const("zero", [0]), const("range", list(range(SLOTS)))]
    path = save(build(nodes, inputs, outputs, consts, opset=18), tmp_path / "body.onnx")
    made = program(path, collect=("y", "text"))
    axes = {"given": 0, "position": 0, "past": 1}
    stage = replace(made.stages[0], examples={**EXAMPLES, "past": floats(6, SLOTS, 2)}, batch_axes=axes)
    model = lb.load(Program("states", (stage,), {"y": "body.y", "text": "body.text"}), require_joinable=True)
    given = [floats(seed, 1 + seed % SLOTS, 1) for seed in range(16)]
    with lb.LazyBatcher(model, policy="continuous", max_batch_size=4) as batcher:
        for steps, result in zip(given, batcher.predict_batch([{"steps": steps} for steps in given]), strict=True):
            np.testing.assert_allclose(result["y"], np.cumsum(steps), atol=1e-6)
            assert result["text"].tolist() == [str(k) for k in range(len(steps))]


@pytest.mark.parametrize("case", BAD)
def test_a_body_that_cannot(tmp_path: Path, case: str) -> None:
    """It is refused when it is loaded, naming stage, state, and what would differ; as a plain carry it is served."""
    path = body(tmp_path / "body.onnx", BAD[case])
    says = (
        r"stage 'body': state 'past' -> 'present' cannot be kept in place: where it is, 'y' is not what it is otherwise"
    )
    with pytest.raises(ModelError, match=says):
        lb.load(program(path))
    with lb.LazyBatcher(lb.load(program(path, in_place=False))) as batcher:
        assert batcher.predict({"steps": floats(1, 3, 1)})["y"].shape == (3, 1)


def test_many_rows_are_tried_before_they_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch larger than what was tried when the model was loaded is tried when its executor is made, once, as far as
    memory allows; nothing is tried for a batch that is not, where memory allows no more, or where the size is none."""
    tried: list[int] = []
    compare = trial.Trial._compare

    def noted(self: Any, rows: int, *given: Any, **named: Any) -> Any:
        tried.append(rows)
        return compare(self, rows, *given, **named)

    monkeypatch.setattr(trial.Trial, "_compare", noted)
    path = body(tmp_path / "body.onnx", GOOD["scattered into"])
    model = lb.load(program(path))
    assert sorted(set(tried)) == [*trial.ROWS, trial.ROWS_MANY]
    tried.clear()
    model.executor(max_batch_size=trial.ROWS_MANY)
    with pytest.raises(InvalidInput, match="max_batch_size"):
        model.executor(max_batch_size="many")
    assert not tried
    model.executor(max_batch_size=40)
    assert set(tried) == {1, 40}
    tried.clear()
    model.executor(max_batch_size=40)
    assert not tried
    monkeypatch.setattr(trial, "BYTES", 25 * trial.COPIES * ROW_BYTES)
    model.executor(max_batch_size=41)
    assert set(tried) == {1, 25}
    tried.clear()
    monkeypatch.setattr(trial, "BYTES", trial.ROWS_MANY * trial.COPIES * ROW_BYTES)
    model.executor(max_batch_size=42)
    assert not tried


def test_what_cannot_be_tried(tmp_path: Path) -> None:
    """Without proof a state is not kept in place, and the reason is what rows made up ran into."""
    path = body(tmp_path / "body.onnx", [INDEX, SCATTER, total("present")])
    says = "stage 'body': state 'past' -> 'present' cannot be kept in place: that could not be tried .* bounds"
    with pytest.raises(ModelError, match=says):
        lb.load(program(path, trips_max=SLOTS + 9))


@pytest.mark.parametrize(("error", "says"), [(ValueError("odd"), "odd"), (MemoryError(), "MemoryError")])
def test_what_breaks_while_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    """Whatever rows run into that are too large, or make no batch: the reason names stage and state."""

    def fail(*given: Any) -> None:
        raise error

    path = body(tmp_path / "body.onnx", [INDEX, SCATTER, total("present")])
    plain = lb.load(program(path, in_place=False))
    monkeypatch.setattr(trial._Side, "step", fail)
    with pytest.raises(ModelError, match=f"stage 'body': state 'past' -> .* could not be tried .*: {says}"):
        lb.load(program(path))
    monkeypatch.setattr(in_place, "LARGE", 1)
    assert in_place.could_be_in_place(plain.plans[0]) == ()


def test_a_body_whose_answers_are_random(tmp_path: Path) -> None:
    """Its draws differ from run to run, in place or not: it is refused for that, not for what it reads."""
    nodes = [op("RandomUniformLike", "given", "draw"), op("Add", "past draw", "present"), total("past")]
    boundaries = [rows("given", 1), rows("past", SLOTS), rows("present", SLOTS), rows("y", 1)]
    partition = cut(
        tmp_path, [nodes], boundaries, ("given", "past"), ("present", "y"), {"one": np.array([1], np.int64)}
    )
    model = OrtModel(partition)
    loop = Repeat({"past": Carry("present", in_place=True)}, {"given": "steps"}, collect=("y",))
    with pytest.raises(ModelError, match="its answers are random: with memory of its own in both of two runs, '"):
        ProgramModel(Program("random", (Stage("body", model, loop=loop),), {"y": "body.y"}), {"body": model})


def test_a_model_that_is_not_joined(tmp_path: Path) -> None:
    """Its states lie in no buffers, and it is said why."""
    path = body(tmp_path / "body.onnx", [INDEX, SCATTER, op("ReduceSum", "present", "s"), op("Add", "given s", "y")])
    with pytest.raises(ModelError, match="'past' -> 'present' cannot be kept in place: its rows are not joined"):
        lb.load(program(path))


def test_a_torch_module() -> None:
    """Its operators make new tensors: it is refused, and told what to do instead."""
    module = torch_bodies.GruStep().eval()
    stage = Stage(
        "gru",
        module,
        loop=Repeat({"h": Carry("h_next", in_place=True)}, {"x": "frames"}, collect=("y",)),
        examples=torch_bodies.step_example(),
    )
    with pytest.raises(ModelError, match=r"stage 'gru': state 'h' -> .* cannot be kept in place: .*torch modules"):
        lb.load(Program("gru", (stage,), {"y": "gru.y"}))


class TestStatesThatRowsBring:
    """The start is an input of the program, with something behind what is filled."""

    def program(
        self,
        folder: Path,
        outputs: Mapping[str, str],
        in_place: bool = True,
        collect: tuple[str, ...] = ("token_next",),
    ) -> Program:
        """A cached decoder whose rows bring their caches."""
        decoder = Decoder(layers=1)
        carry = {name: Carry(output, name, in_place) for name, output in decoder.states.items()}
        loop = Repeat(
            {"token": Carry("token_next", "first"), **carry},
            iteration="position",
            done="finished",
            trips_max=decoder.slots,
            collect=collect,
        )
        path = decoder.write(folder / "decoder.onnx")
        return Program("cached", (Stage("decoder", path, loop=loop),), outputs)

    def test_what_nobody_reads_may_stay(self, tmp_path: Path) -> None:
        """Attention blanks what lies behind the last position, unless it is in place: no answer shows it."""
        model = lb.load(self.program(tmp_path, {"words": "decoder.token_next"}))
        other = lb.load(self.program(tmp_path, {"words": "decoder.token_next"}, in_place=False))
        given = [model.sample_row(seed) for seed in range(12)]
        with lb.LazyBatcher(model, max_batch_size=4) as one, lb.LazyBatcher(other, max_batch_size=4) as two:
            for ours, theirs in zip(one.predict_batch(given), two.predict_batch(given), strict=True):
                np.testing.assert_array_equal(ours["words"], theirs["words"])

    def test_what_is_an_answer_may_not(self, tmp_path: Path) -> None:
        """Where the cache itself is given out, its every element counts."""
        outputs = {"words": "decoder.token_next", "cache": "decoder.past_k0"}
        with pytest.raises(
            ModelError, match=r"'past_k0' -> 'present_k0', .*where it is, 'present_k0' is not what it is"
        ):
            lb.load(self.program(tmp_path, outputs))

    def test_nor_may_what_is_collected(self, tmp_path: Path) -> None:
        """Where the cache is given out after each iteration, it counts as well."""
        outputs = {"words": "decoder.token_next", "caches": "decoder.present_k0"}
        with pytest.raises(ModelError, match="where it is, 'present_k0' is not what it is otherwise"):
            lb.load(self.program(tmp_path, outputs, collect=("token_next", "present_k0")))


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Path, list[list[int]]]:
    """A decoder, its file, and what every first word leads to alone."""
    decoder = Decoder()
    path = decoder.write(tmp_path_factory.mktemp("cached") / "decoder.onnx")
    return decoder, path, alone(decoder, path, range(1, decoder.words))


@pytest.mark.parametrize("policy", ["continuous", "lookahead", "graph", "cellular"])
def test_rows_come_and_leave_at_random(cached: tuple[Decoder, Path, list[list[int]]], policy: str) -> None:
    """Newcomers, rows that leave early, holes that are filled: every row gets the words it gets alone."""
    decoder, path, words = cached
    model = lb.load(decoder.program(path), require_joinable=True)
    rng = random.Random(7)
    firsts = [rng.randrange(1, decoder.words) for _ in range(80)]
    with lb.LazyBatcher(model, policy=policy, max_batch_size=6, queue_capacity=100) as batcher:
        futures = []
        for first in firsts:
            futures.append(batcher.submit({"first": first}))
            if rng.random() < 0.3:
                futures[rng.randrange(len(futures))].result(60)
        for first, future in zip(firsts, futures, strict=True):
            assert future.result(60)["words"].tolist() == words[first - 1]
        assert batcher.stats().mean_rows > 1
        assert batcher.stats().left_early or policy == "graph"


def test_a_step_moves_nothing(cached: tuple[Decoder, Path, list[list[int]]]) -> None:
    """Past and present lie at one address, from one iteration to the next; a batch takes half the memory."""
    decoder, path, _ = cached
    plan = lb.load(decoder.program(path)).plans[0]
    assert plan.loop is not None
    chain = plan.model.chain(max_batch_size=4, cycle=plan.loop.cycle)
    assert all(chain.store.in_place(name) for name in decoder.states)
    made = [lb.load(decoder.program(path, in_place=one)).executor(max_batch_size=4).memory() for one in (True, False)]
    caches = 2 * 4 * len(decoder.states) * decoder.kv_heads * decoder.slots * decoder.width * 4
    assert made[1].buffers_bytes - made[0].buffers_bytes == pytest.approx(caches, rel=0.01)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_every_order_of_calls(cached: tuple[Decoder, Path, list[list[int]]], whole: bool, nodes: int) -> None:
    """Opened, padded, parked between nodes, merged, evicted, in any order: each row gets what it gets alone, also
    where every layer is a node of its own."""
    decoder, path, words = cached
    options: dict[str, Any] = {} if nodes == 1 else {"preempt_within": 1e-9}
    model = lb.load(decoder.program(path), cache=False, **options)
    assert (len(model.graph) == 1) == (nodes == 1)
    executor = model.executor(max_batch_size=6)
    for seed in range(4):
        course = Course(model, executor, {first: {"first": first} for first in range(1, 13)}, whole=whole)
        rng = np.random.default_rng(seed)
        course.drive(lambda n, rng=rng: int(rng.integers(n)), rows_max=6)  # type: ignore[misc]
        assert len(course.results) == 12 - course.evicted
        for first, result in course.results.items():
            assert result["words"].tolist() == words[first - 1]


def test_a_step_that_fails(tmp_path: Path) -> None:
    """When it fails the state is half written: rows begin again with what they brought, and only the culprit fails."""
    fails = op("GatherElements", "present far", "y", axis=1)  # after the state was written; far is given by the row
    nodes = [
        INDEX,
        op("Cast", "given", "far", to=I64),
        op("ScatterElements", "past at given", "present", axis=1),
        fails,
    ]
    path = body(tmp_path / "body.onnx", nodes)
    examples = {**EXAMPLES, "given": np.array([[1.0], [2.0]], np.float32)}
    stage = replace(program(path).stages[0], examples=examples)
    model = lb.load(Program("states", (stage,), {"y": "body.y", "state": "body.past"}), require_joinable=True)
    rng = np.random.default_rng(2)
    given = [rng.integers(0, SLOTS, (1 + k % SLOTS, 1)).astype(np.float32) for k in range(16)]
    for culprit in (5, 11):
        given[culprit][-1] = 99
    with lb.LazyBatcher(model, policy="continuous", max_batch_size=8) as batcher:
        found = batcher.predict_batch([{"steps": steps} for steps in given], return_exceptions=True)
    for k, (steps, result) in enumerate(zip(given, found, strict=True)):
        if k in (5, 11):
            assert isinstance(result, ExecutionError)
            continue
        state = np.zeros(SLOTS, np.float32)
        for at, far in enumerate(steps[:, 0]):
            state[at] = far
            assert result["y"][at, 0] == state[int(far)]
        np.testing.assert_array_equal(result["state"], state)


def test_one_iteration_for_all(tmp_path: Path) -> None:
    """A body that is told one iteration number joins rows at equal iterations only, in place as well."""
    nodes = [op("Equal", "range position", "here"), op("Where", "here given past", "present"), total("present")]
    inputs = [OUTSIDE[0], value("position", I64, [1]), OUTSIDE[2]]
    path = body(tmp_path / "body.onnx", nodes, inputs)
    stage = replace(program(path).stages[0], examples={**EXAMPLES, "position": np.array([3])})
    model = lb.load(Program("states", (stage,), {"y": "body.y"}), require_joinable=True)
    assert model.graph.loops[0].same_iteration
    given = [floats(seed, 1 + seed % SLOTS, 1) for seed in range(16)]
    with lb.LazyBatcher(model, policy="continuous", max_batch_size=4) as batcher:
        for steps, result in zip(given, batcher.predict_batch([{"steps": steps} for steps in given]), strict=True):
            np.testing.assert_allclose(result["y"], np.cumsum(steps, 0), atol=1e-6)


def test_what_was_measured_stays_valid(cached: tuple[Decoder, Path, list[list[int]]]) -> None:
    """A program in place is another one; one that is not is what it was before there were any."""
    decoder, path, _ = cached
    one, other = (lb.load(decoder.program(path, in_place=kept)) for kept in (True, False))
    assert one.fingerprint != other.fingerprint
    parts = [other.name, sorted(other.program.outputs.items())]
    stage = other.program.stages[0]
    told = repr(stage.loop).replace(", in_place=False", "")
    parts += [stage.name, [], told, other.models["decoder"].fingerprint]
    assert other.fingerprint == hashlib.sha256(repr(parts).encode()).hexdigest()


def test_check_says_so(cached: tuple[Decoder, Path, list[list[int]]]) -> None:
    """The states in place are named."""
    decoder, path, _ = cached
    report = lb.check(lb.load(decoder.program(path)))
    assert isinstance(report, ProgramReport)
    assert report.stages[0].in_place == tuple(sorted(decoder.states))
    assert report.equal


def test_check_suggests_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large states that could be in place are named; small ones, those that could not, and those that are, are not."""
    plans = {}
    for name, nodes in (("good", GOOD["scattered into"]), ("bad", BAD["turned round"])):
        path = body(tmp_path / f"{name}.onnx", nodes)
        plans[name] = lb.load(program(path, in_place=False)).plans[0]
    assert in_place.could_be_in_place(plans["good"]) == ()
    monkeypatch.setattr(in_place, "LARGE", SLOTS * 4)
    model = lb.load(program(tmp_path / "good.onnx", in_place=False))
    note = "'past' could be kept in place (in_place): an iteration would copy nothing of it"
    assert note in lb.check(model).stages[0].notes  # type: ignore[union-attr]
    assert in_place.could_be_in_place(plans["bad"]) == ()
    monkeypatch.setattr(trial, "BYTES", trial.COPIES * ROW_BYTES)
    assert in_place.could_be_in_place(plans["good"]) == ()


def test_nothing_is_tried_where_nothing_could_be_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where all large states are declared, nor where the runtime keeps every value in memory of its own."""

    def fail(*given: Any, **named: Any) -> None:
        raise AssertionError("nothing is to be tried")

    monkeypatch.setattr(in_place, "LARGE", 1)
    declared = lb.load(program(body(tmp_path / "body.onnx", GOOD["scattered into"]))).plans[0]
    loop = Repeat({"h": Carry("h_next")}, {"x": "frames"}, collect=("y",))
    stage = Stage("gru", torch_bodies.GruStep().eval(), loop=loop, examples=torch_bodies.step_example())
    made_new = lb.load(Program("gru", (stage,), {"y": "gru.y"})).plans[0]
    monkeypatch.setattr(declared.model, "chain", fail)
    for plan in (declared, made_new):
        monkeypatch.setattr(plan.model, "sample_row", fail)
        assert in_place.could_be_in_place(plan) == ()
