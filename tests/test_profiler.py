"""The profiler: what it measures, in which order, within which budget; resuming; the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lazybatch.core.latency import LatencyTable
from lazybatch.errors import ExecutionError, InvalidInput, TableMismatch
from lazybatch.executors.base import Executor, Row
from lazybatch.executors.simulated import SimulatedExecutor, SimulatedModel
from lazybatch.profiler import SAMPLES_MIN, Progress, profile, verdict

MS = 1_000_000


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        """The time."""
        return self.now_ns

    def advance(self, by_ns: int) -> None:
        """Move on."""
        self.now_ns += by_ns


class SpyModel(SimulatedModel):
    """A simulated model that makes its own rows, notes the size of each pass and can be slowed down or broken."""

    def __init__(self, clock: Clock, *, fixed_ns: int = 8 * MS, per_row_ns: int = 2 * MS, nodes: int = 2) -> None:
        super().__init__(LatencyTable.uniform("spy", nodes, fixed_ns, per_row_ns, (1, 2, 4, 8, 16)), self._advance)
        self.clock = clock
        self.passes: list[int] = []
        self.sampled: list[int] = []
        self.shut_down = 0
        self.slower = 1
        self.fails_at: tuple[int, int] | None = None
        self.failure: BaseException = RuntimeError("out of memory")
        self.accelerator: str | None = None
        self.row_failure: Exception | None = None

    def _advance(self, by_ns: int) -> None:
        self.clock.advance(by_ns * self.slower)

    def sample_row(self, seed: int) -> Any:
        """A row."""
        self.sampled.append(seed)
        return {"x": seed}

    def executor(self, *, max_batch_size: int) -> SimulatedExecutor:
        """An executor that reports to this model."""
        return SpyExecutor(self, max_batch_size)


class SpyExecutor(SimulatedExecutor):
    """Tells its model of every pass, and fails where the model says so."""

    def __init__(self, model: SpyModel, rows_max: int) -> None:
        super().__init__(model.table, rows_max, model._advance)
        self.model = model
        self.size = 0

    def open(self, sub_batch: int, rows: Any, padded_rows: int) -> None:
        """Note the size."""
        self.size = len(rows)
        self.model.passes.append(self.size)
        super().open(sub_batch, rows, padded_rows)

    def run(self, sub_batch: int, node: int) -> None:
        """Fail on demand."""
        if self.model.fails_at == (node, self.size):
            raise self.model.failure
        super().run(sub_batch, node)

    def close(self, sub_batch: int) -> dict[int, Any]:
        """Fail a row on demand."""
        results = super().close(sub_batch)
        return {k: self.model.row_failure or value for k, value in results.items()}

    def shutdown(self) -> None:
        """Count it, and insist that nothing is left open."""
        super().shutdown()
        self.model.shut_down += 1


def run(model: SpyModel, **options: Any) -> Any:
    """A profile on the model's own clock."""
    return profile(model, **{"batch_sizes": (1, 2, 4), "clock_ns": model.clock, **options})


def test_it_measures_what_the_executor_takes() -> None:
    """On a stepped clock the table comes out as the executor's own times, node by node, size by size."""
    model = SpyModel(Clock())
    table = run(model, batch_sizes=(1, 2, 4, 8, 16))
    assert table.nodes == model.table.nodes
    assert table.median_ns == table.high_ns == model.table.median_ns
    assert model.shut_down == 1
    assert model.sampled == list(range(16))


def test_provenance() -> None:
    """The table says what, where, with what, how often and by which command it was measured, in JSON values."""
    table = run(SpyModel(Clock()), repeats=7, command="lazybatch profile spy")
    provenance = json.loads(json.dumps(dict(table.provenance)))
    assert provenance["fingerprint"] == "simulated:spy"
    assert provenance["samples"] == {"1": 7, "2": 7, "4": 7}
    assert provenance["command"] == "lazybatch profile spy"
    assert {"machine", "versions", "threads", "date", "high_quantile", "joinable", "signature"} <= provenance.keys()
    assert provenance["inputs"] == "made up"
    assert provenance["date"].endswith("+00:00")


def test_sizes_are_interleaved() -> None:
    """No size is measured in one block: after the warm-up the minimum goes round robin, and ever so often all occur."""
    model = SpyModel(Clock())
    run(model, repeats=20)
    assert model.passes[:9] == [1, 1, 1, 2, 2, 2, 4, 4, 4], "two passes to warm up before a size's first"
    assert model.passes[9:15] == [1, 2, 4, 1, 2, 4]
    rest = model.passes[15:]
    assert all({1, 2, 4} <= set(rest[k : k + 12]) for k in range(0, 36, 12))


def test_a_drift_hits_all_sizes_alike() -> None:
    """When the machine becomes three times slower a little before half-way, it has for all sizes."""
    model = SpyModel(Clock())

    def slow_down(progress: Progress) -> None:
        model.slower = 3 if progress.passes > 65 else 1

    table = run(model, repeats=51, progress=slow_down)
    slower = {seen / real for seen, real in zip(table.median_ns[0], model.table.median_ns[0], strict=False)}
    assert slower == {3.0}
    assert table.high_ns[0] == tuple(3 * time_ns for time_ns in model.table.median_ns[0][:3])


def test_budget_bounds_the_time_and_is_split_fairly() -> None:
    """With a budget for some of the repeats, the time is not exceeded, and a size that costs four times as much gets
    half as many passes."""
    clock = Clock()
    model = SpyModel(clock, fixed_ns=MS, per_row_ns=10 * MS)
    table = run(model, budget_s=3.0, repeats=1_000)
    assert clock.now_ns <= 3_000 * MS
    assert clock.now_ns >= 2_900 * MS
    samples = table.provenance["samples"]
    even = [samples[str(rows)] * (1 + 10 * rows) ** 0.5 for rows in (1, 2, 4)]
    assert max(even) < 1.2 * min(even)


def test_every_cell_gets_a_few_samples_whatever_the_budget() -> None:
    """A budget too small for anything still gives a table without holes, of the least number of samples."""
    model = SpyModel(Clock())
    seen: list[float] = []
    table = run(model, budget_s=0.001, progress=lambda progress: seen.append(progress.share))
    assert table.provenance["samples"] == {"1": SAMPLES_MIN, "2": SAMPLES_MIN, "4": SAMPLES_MIN}
    assert seen == sorted(seen)
    assert seen[0] < 0.5
    assert seen[-1] == 1.0


def test_high_quantile_by_samples() -> None:
    """Few samples: the largest; from 20 on p95; from 100 on p99 (one pass in fifty is ten times slower)."""
    highs = {}
    for repeats in (10, 40, 200):
        model = SpyModel(Clock())

        def hiccup(progress: Progress, model: SpyModel = model) -> None:
            model.slower = 10 if progress.passes % 50 == 5 else 1

        highs[repeats] = run(model, batch_sizes=(1,), repeats=repeats, progress=hiccup).high_ns[0][0]
    usual = SpyModel(Clock()).table.median_ns[0][0]
    assert highs == {10: 10 * usual, 40: usual, 200: 10 * usual}


def test_not_joinable_is_measured_alone() -> None:
    """A model whose rows cannot be joined is only ever run with one row, and the table says why."""
    model = SpyModel(Clock())
    model.joinable, model.reason = False, "Reshape to a fixed batch"
    table = run(model)
    assert table.batch_sizes == (1,)
    assert set(model.passes) == {1}
    assert str(verdict(table)) == "spy: rows are served alone: Reshape to a fixed batch"


def test_given_inputs_are_used_in_turn() -> None:
    """Rows given by the caller are admitted and shared out; nothing is made up."""
    model = SpyModel(Clock())
    rows_seen: list[Row] = []

    class Noting(SpyExecutor):
        def open(self, sub_batch: int, rows: Any, padded_rows: int) -> None:
            rows_seen.extend(rows.values())
            super().open(sub_batch, rows, padded_rows)

    model.executor = lambda *, max_batch_size: Noting(model, max_batch_size)  # type: ignore[method-assign]
    run(model, inputs=["a", "b", "c"])
    assert model.sampled == []
    assert [row.values for row in rows_seen[:6]] == ["a", "b", "c", "a", "b", "c"]


def test_a_failing_node_is_named() -> None:
    """A node that raises at one size ends the profile: model, node, size and cause are named, nothing is left open."""
    model = SpyModel(Clock())
    model.fails_at = (1, 4)
    with pytest.raises(ExecutionError, match="model 'spy': node 'node1' failed at batch size 4: out of memory"):
        run(model)
    assert model.shut_down == 1


def test_a_failing_row_is_named() -> None:
    """An executor that gives a row an exception instead of a result ends the profile too."""
    model = SpyModel(Clock())
    model.row_failure = ValueError("bad row")
    with pytest.raises(ExecutionError, match="a row failed at batch size 1: bad row"):
        run(model)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"batch_sizes": ()}, "batch sizes must increase from 1"),
        ({"batch_sizes": (1, 1 << 40)}, "batch size 1099511627776 is above 65536"),
        ({"batch_sizes": (2, 4)}, "batch sizes must increase from 1"),
        ({"batch_sizes": (1, 4, 4)}, "batch sizes must increase from 1"),
        ({"batch_sizes": (1, 2.5)}, "whole numbers"),
        ({"budget_s": 0}, "budget_s"),
        ({"budget_s": float("nan")}, "budget_s"),
        ({"repeats": 2}, "repeats"),
        ({"inputs": []}, "non-empty sequence of rows"),
        ({"inputs": {"x": 1}}, "got dict"),
    ],
)
def test_bad_options(options: dict[str, Any], culprit: str) -> None:
    """Each option out of range is named before anything is measured."""
    model = SpyModel(Clock())
    with pytest.raises(InvalidInput, match=culprit):
        run(model, **options)
    assert model.passes == []


def test_rows_of_several_shapes_and_models_without_samples() -> None:
    """Rows that could not share a sub-batch are refused, and so is a model that can make none of its own."""
    clock = Clock()
    table = LatencyTable.uniform("m", 1, 10, 10, (1, 2))
    model = SimulatedModel(table, clock.advance, signature_of=len)
    with pytest.raises(InvalidInput, match="row 0 has 1, row 1 has 2"):
        profile(model, (1, 2), inputs=["a", "bb"], clock_ns=clock)
    with pytest.raises(InvalidInput, match="model 'm' cannot make up rows"):
        profile(model, (1, 2), clock_ns=clock)


class Whatever:
    """A value of a row that says nothing of itself."""


class TestResume:
    """A profile that was interrupted goes on where it stopped."""

    def interrupted(self, path: Path, after: int = 6, **options: Any) -> SpyModel:
        """A model whose profile was interrupted after some passes."""
        model = SpyModel(Clock())

        def interrupt(progress: Progress) -> None:
            if progress.passes == after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(model, resume=path, progress=interrupt, **options)
        assert model.shut_down == 1
        return model

    def test_what_is_done_is_skipped(self, tmp_path: Path) -> None:
        """Passes already measured are not measured again, they count, and the file goes at the end."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        assert path.exists()
        measured: list[int] = []
        table = run(SpyModel(Clock()), resume=path, repeats=5, progress=lambda now: measured.append(now.rows))
        assert len(measured) == 15 - 6
        assert table.provenance["samples"] == {"1": 5, "2": 5, "4": 5}
        assert not path.exists()

    def test_time_spent_counts(self, tmp_path: Path) -> None:
        """A profile resumed after its budget was used up only fills the holes."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        model = SpyModel(Clock())
        table = run(model, resume=path, budget_s=0.01)
        assert table.provenance["samples"] == {"1": SAMPLES_MIN, "2": SAMPLES_MIN, "4": SAMPLES_MIN}

    def test_interrupted_inside_a_node(self, tmp_path: Path) -> None:
        """An interrupt in the middle of a pass loses that pass only and leaves nothing open."""
        path, model = tmp_path / "partial.json", SpyModel(Clock())

        def arm(progress: Progress) -> None:
            if progress.passes == 4:
                model.fails_at, model.failure = (1, 2), KeyboardInterrupt()

        with pytest.raises(KeyboardInterrupt):
            run(model, resume=path, progress=arm)
        assert model.shut_down == 1
        assert [len(json.loads(path.read_text())["samples_ns"][size][0]) for size in ("1", "2", "4")] == [2, 1, 1]

    def test_it_is_saved_as_it_goes(self, tmp_path: Path) -> None:
        """The file is renewed every few seconds of measuring, not only at the end."""
        path = tmp_path / "partial.json"
        there: list[bool] = []
        run(SpyModel(Clock(), fixed_ns=2_000 * MS), resume=path, progress=lambda _: there.append(path.exists()))
        assert there[0]

    def test_another_model_input_or_machine_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A partial file of something else is named as such, and left as it is."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        before = path.read_text()
        other = SpyModel(Clock(), nodes=3)
        with pytest.raises(TableMismatch, match="of another model: nodes"):
            run(other, resume=path)
        changed = SpyModel(Clock())
        changed.fingerprint = "another"
        with pytest.raises(TableMismatch, match=r"fingerprint 'simulated:spy' there, 'another' here"):
            run(changed, resume=path)
        document = json.loads(before)
        document["machine"]["cores"] = 1_000
        path.write_text(json.dumps(document))
        with pytest.raises(TableMismatch, match="another machine: cores 1000 there"):
            run(SpyModel(Clock()), resume=path)
        assert json.loads(path.read_text()) == document

    def test_another_number_of_threads_is_refused(self, tmp_path: Path) -> None:
        """Samples of one thread and of four would make a table of neither."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        other = SpyModel(Clock())
        other.threads = 4
        with pytest.raises(TableMismatch, match=r"of another number of threads: threads None there, 4 here"):
            run(other, resume=path)

    def test_another_device_is_refused(self, tmp_path: Path) -> None:
        """What was measured on the CPU is not gone on with on an accelerator; a table says what it was measured on."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        other = SpyModel(Clock())
        other.accelerator = "abacus"
        with pytest.raises(TableMismatch, match="another machine: accelerator None there, 'abacus' here"):
            run(other, resume=path)
        assert run(other).provenance["machine"]["accelerator"] == "abacus"
        assert "accelerator" not in run(SpyModel(Clock())).provenance["machine"]

    def test_other_inputs_of_the_same_shape_are_refused(self, tmp_path: Path) -> None:
        """What rows hold may decide how long they take: made-up rows are not given ones, nor are those all alike. Equal
        ones are, though they are other objects."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        zeros, last = np.zeros(2_000), np.zeros(2_000)
        last[1_000] = 1
        with pytest.raises(TableMismatch, match=r"of other inputs: inputs 'made up' there, 'given, [0-9a-f]{16}' here"):
            run(SpyModel(Clock()), resume=path, inputs=[{"x": zeros}])
        path.unlink()
        self.interrupted(path, inputs=[{"x": zeros, "y": (1, Whatever())}])
        with pytest.raises(TableMismatch, match=r"of other inputs: inputs 'given, [0-9a-f]{16}' there, 'given"):
            run(SpyModel(Clock()), resume=path, inputs=[{"x": last, "y": (1, Whatever())}])
        run(SpyModel(Clock()), resume=path, inputs=[{"y": (1, Whatever()), "x": zeros.copy()}])
        assert not path.exists()

    @pytest.mark.parametrize(
        "change",
        [
            {"identity": None},
            {"samples_ns": []},
            {"samples_ns": {"1": [[1], [1, 2]]}},
            {"samples_ns": {"1": [[1]]}},
            {"samples_ns": {"1": [[1], ["x"]]}},
            {"samples_ns": {"1": [[1], [0]]}},
            {"samples_ns": {"1": 3}},
            {"spent_ns": {}},
        ],
    )
    def test_damaged(self, tmp_path: Path, change: dict[str, Any]) -> None:
        """A partial file with holes or nonsense is refused as damaged."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(InvalidInput, match=r"partial\.json' is damaged"):
            run(SpyModel(Clock()), resume=path)

    def test_sizes_may_change(self, tmp_path: Path) -> None:
        """Sizes the partial file lacks are measured from the start, the others are taken over."""
        path = tmp_path / "partial.json"
        self.interrupted(path)
        model = SpyModel(Clock())
        table = run(model, batch_sizes=(1, 2, 8), resume=path, repeats=3)
        assert table.batch_sizes == (1, 2, 8)
        assert table.provenance["samples"] == {"1": 3, "2": 3, "8": 3}


class TestVerdict:
    """The verdict: a sentence and the curve it rests on."""

    def test_batching_pays(self) -> None:
        """Where fixed cost dominates, the gain at the best profiled size is named."""
        result = verdict(LatencyTable.uniform("m", 1, 10 * MS, MS, (1, 2, 4, 8, 16)))
        assert str(result) == "m: batching gains 6.8x at 16"
        assert (result.pays, result.best_rows) == (True, 16)
        assert result.curve[0] == (1, 11 * MS, 1.0)

    def test_batching_does_not_pay(self) -> None:
        """Where time grows with the rows, that is said, with the factor."""
        result = verdict(LatencyTable.uniform("m", 1, 1, MS, (1, 2, 4, 8, 16)))
        assert str(result) == "m: batching does not pay here: 16 rows together take 16.0x the time of one"
        assert not result.pays

    def test_gain_in_the_middle(self) -> None:
        """The best size need not be the largest one."""
        result = verdict(LatencyTable("m", ("a",), (1, 4, 8), ((10, 20, 90),), ((10, 20, 90),)))
        assert str(result) == "m: batching gains 2.0x at 4"

    def test_only_single_rows(self) -> None:
        """A table of size 1 alone cannot say anything about batching, and does not pretend to."""
        assert "nothing is known" in str(verdict(LatencyTable("m", ("a",), (1,), ((10,),), ((10,),))))


def test_the_spy_is_an_executor() -> None:
    """The test double keeps to the contract the profiler relies on."""
    executor: Executor = SpyModel(Clock()).executor(max_batch_size=2)
    executor.open(0, {0: Row("a"), 1: Row("b")}, 2)
    executor.run(0, 0)
    executor.run(0, 1)
    assert executor.close(0) == {0: "a", 1: "b"}
