"""Several models, tables, policies, and options that are refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lazybatch as lb
from lazybatch.core.latency import LatencyTable
from tests.engine.kit import AddChain, accounts, upper


def test_several_models_behind_one_batcher() -> None:
    """Calls say which model; limits are per model where they are given so; counters are kept apart."""
    models = {"det": AddChain(2), "rec": AddChain(3), "text": upper}
    with lb.LazyBatcher(models, max_batch_size={"det": 2}, queue_capacity={"det": 2}) as batcher:
        assert batcher.predict(1, model="det") == 12.0
        assert batcher.predict_batch([1, 2], model="rec") == [112.0, 113.0]
        assert batcher.predict("a", model="text") == "A"
        with pytest.raises(lb.InvalidInput, match="say model= with one of det, rec, text"):
            batcher.predict(1)
        with pytest.raises(lb.InvalidInput, match=r"unknown model \[\]; known are"):
            batcher.submit("a", model=[])  # type: ignore[arg-type]
        with pytest.raises(lb.InvalidInput, match="unknown model 'cls'; known are det, rec, text"):
            batcher.submit(1, model="cls")
        with pytest.raises(lb.Overloaded, match="never fit"):
            batcher.predict_batch([1, 2, 3], model="det")
        assert set(batcher.models) == {"det", "rec", "text"}
    stats = batcher.stats()
    assert {name: part.completed for name, part in stats.models.items()} == {"det": 1, "rec": 2, "text": 1}
    accounts(stats)


def test_lazy_is_the_default_and_measures_what_it_needs() -> None:
    """A model without a table is profiled briefly; callables without one fall back to graph batching."""
    with lb.LazyBatcher(AddChain(), sla=10) as batcher:
        assert batcher.predict(1) == 112.0
        table = batcher.tables["chain"]
        assert table is not None
        assert table.nodes == ("add0", "add1", "add2")
    with lb.LazyBatcher(upper) as batcher:
        assert batcher.tables == {"upper": None}


def test_a_given_table_is_used_and_checked() -> None:
    """A table of another model, partition or machine is refused with both sides named, unless it is allowed."""
    model = AddChain()
    table = model.table()
    with lb.LazyBatcher(model, table=table) as batcher:
        assert batcher.tables["chain"] is table
    other = AddChain(2)
    with pytest.raises(lb.TableMismatch, match="chain"):
        lb.LazyBatcher(other, table=table)
    twin = AddChain()
    twin.fingerprint = "another-file"
    with pytest.raises(lb.TableMismatch, match=r"chain-3.*another-file"):
        lb.LazyBatcher(twin, table=table)
    with lb.LazyBatcher(twin, table=table, allow_foreign_table=True) as batcher:
        assert batcher.predict(1) == 112.0
    elsewhere = LatencyTable(
        table.model, table.nodes, table.batch_sizes, table.median_ns, table.high_ns, {"machine": {"cpu": "abacus"}}
    )
    with pytest.raises(lb.TableMismatch, match="abacus"):
        lb.LazyBatcher(model, table=elsewhere)
    with pytest.raises(lb.InvalidInput, match="must be a LatencyTable"):
        lb.LazyBatcher(model, table="table.json")  # type: ignore[arg-type]


def test_a_callable_with_a_table_can_be_served_lazily() -> None:
    """The measured table decides; without one, the policy says what it lacks."""
    model = lb.CallableModel(upper)
    table = lb.profile(model, (1, 2), inputs=["a", "b"], budget_s=0.05)
    with lb.LazyBatcher(model, table=table) as batcher:
        assert batcher.predict("a") == "A"
        assert batcher.tables["upper"] is table
    with pytest.raises(lb.InvalidInput, match="callable without a latency table"):
        lb.LazyBatcher(upper, policy="lazy")


def test_a_target_that_no_row_can_meet_is_refused() -> None:
    """The SLA is compared with one bare run, and both numbers are named."""
    model = AddChain()
    with pytest.raises(lb.InvalidInput, match=r"sla=0.001 s cannot be met: one row alone takes 0.003000 s"):
        lb.LazyBatcher(model, table=model.table(1_000_000), sla=0.001)


def test_a_target_below_the_smallest_size_that_runs_is_refused() -> None:
    """Where one row is executed as four, it takes the time of four."""
    model = AddChain()
    times = ((1_000_000, 2_000_000),) * 3
    table = LatencyTable(model.name, model.table().nodes, (1, 4), times, times)
    with pytest.raises(lb.InvalidInput, match=r"one row alone takes 0\.006000 s"):
        lb.LazyBatcher(model, table=table, sla=0.004, max_batch_size=4, allowed_batch_sizes=(4,))


def test_late_rows_are_dropped_where_that_is_chosen() -> None:
    """A row whose own target is below one bare run is accepted, and fails; counted apart. By default it is answered."""
    model = AddChain()
    table = model.table(1_000_000)
    with lb.LazyBatcher(model, table=table, sla=60, late="drop") as batcher:
        hopeless, kept = batcher.submit(1, sla=0.0005), batcher.submit(2)
        with pytest.raises(lb.DeadlineExceeded, match="late rows are dropped"):
            hopeless.result(60)
        assert kept.result(60) == 113.0
        stats = batcher.stats()
        assert (stats.accepted, stats.dropped, stats.expired, stats.completed) == (2, 1, 0, 1)
        assert stats.as_dict()["dropped"] == 1
    with lb.LazyBatcher(model, table=table, sla=60) as batcher:
        assert batcher.predict(1, sla=0.0005) == 112.0


def test_each_model_may_have_its_own_rule_for_late_rows() -> None:
    """A mapping by name; models that are not in it serve late rows."""
    models = {"a": AddChain(), "b": AddChain()}
    tables = {name: model.table(1_000_000) for name, model in models.items()}
    with lb.LazyBatcher(models, table=tables, late={"a": "drop"}, allow_foreign_table=True) as batcher:
        rows = [batcher.submit(1, model=name, sla=0.0005) for name in models]
        assert isinstance(rows[0].exception(60), lb.DeadlineExceeded)
        assert rows[1].result(60) == 112.0


def test_dropping_needs_a_latency_table() -> None:
    """Measured for a model whose policy needs none; a callable must bring it; a window must leave time to run."""
    model = AddChain()
    with lb.LazyBatcher(model, policy="graph", late="drop", max_batch_size=2) as batcher:
        assert batcher.tables[model.name] is not None
        assert batcher.predict(1) == 112.0
    with pytest.raises(lb.InvalidInput, match="late='drop' must know how long a row takes"):
        lb.LazyBatcher(upper, late="drop")
    with pytest.raises(lb.InvalidInput, match=r"a row that waits for max_delay=0.01 s is dropped"):
        lb.LazyBatcher(model, policy="graph", table=model.table(1_000_000), sla=0.012, max_delay=0.01, late="drop")


def test_what_cannot_be_joined_is_served_alone() -> None:
    """A model that is not joinable never gets two rows in a sub-batch, and still serves all of them."""
    sizes: list[int] = []
    model = AddChain(joinable=False, before=lambda _, values: sizes.append(len(values)))
    with lb.LazyBatcher(model, policy="graph") as batcher:
        assert batcher.predict_batch(range(5)) == [k + 111.0 for k in range(5)]
    assert set(sizes) == {1}
    assert model.made[0].max_batch_size == 1


@pytest.mark.parametrize(
    ("models", "options", "text"),
    [
        (3, {}, "expected a model"),
        ("model.onnx", {}, "expected a model from lazybatch.load"),
        ({}, {}, "at least one model"),
        ({1: upper}, {}, "non-empty strings"),
        ({"a": upper, "b": 3}, {}, "expected a model"),
        (upper, {"policy": "best"}, "unknown policy 'best'; known are"),
        (upper, {"max_batch_size": 0}, "max_batch_size must be"),
        (upper, {"max_batch_size": 64, "queue_capacity": 32}, "queue_capacity=32 is smaller"),
        (upper, {"max_batch_size": {"nope": 3}}, "max_batch_size names the unknown model 'nope'"),
        (upper, {"workers": -1}, "workers must be"),
        (upper, {"sla": float("nan")}, "sla must be"),
        (upper, {"observers": [3]}, "observers must derive"),
        (upper, {"trace": "/nonexistent/folder/trace.json"}, "trace"),
        (upper, {"allow_foreign_table": 1}, "allow_foreign_table must be True or False"),
        ({"chain": AddChain()}, {"workers": 2}, "workers=2 is for callables"),
        ({"chain": AddChain()}, {"length_bucket_width": 2}, "length_bucket_width=2 is for plain callables"),
        ({"chain": AddChain(), "b": upper}, {"table": AddChain().table()}, "give a mapping"),
    ],
)
def test_bad_options_are_refused_at_construction(models: Any, options: dict[str, Any], text: str) -> None:
    """Each names the culprit and what was expected; no thread is left behind."""
    before = threading.active_count()
    with pytest.raises(lb.InvalidInput, match=text):
        lb.LazyBatcher(models, **options)
    assert threading.active_count() <= before
