"""Latency table files, the description of the machine, and whether a table belongs to a model."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch import profiles
from lazybatch.core import latency
from lazybatch.core.graph import NodeGraph
from lazybatch.core.latency import EngineTime
from lazybatch.errors import InvalidInput, TableMismatch
from lazybatch.profiles import LatencyTable, check_table, machine, versions

TABLE = LatencyTable("m", ("a", "b"), (1, 4), ((10, 20), (30, 90)), ((12, 25), (31, 99)), {"fingerprint": "f" * 64})


@dataclass(frozen=True)
class FakeModel:
    """What `check_table` looks at."""

    name: str = "m"
    nodes: tuple[str, ...] = ("a", "b")
    fingerprint: str = "f" * 64
    threads: int | None = None
    accelerator: str | None = None

    @property
    def graph(self) -> NodeGraph:
        """The chain."""
        return NodeGraph.chain(self.name, self.nodes)


def damaged(path: Path, change: dict[str, Any], drop: str | None = None) -> Path:
    """A table file with some keys changed or one missing."""
    TABLE.save(path)
    document = json.loads(path.read_text()) | change
    if drop is not None:
        del document[drop]
    path.write_text(json.dumps(document))
    return path


def test_round_trip(tmp_path: Path) -> None:
    """What is saved is loaded, provenance included, as a table that can be saved again."""
    path = tmp_path / "table.json"
    TABLE.save(path)
    loaded = LatencyTable.load(path)
    assert loaded == TABLE
    assert isinstance(profiles.load(path), LatencyTable)
    assert loaded.whole_ns(4) == 110
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"], "no temporary file is left"
    assert path.stat().st_mode & stat.S_IRUSR


def test_the_engines_time_is_kept_and_may_be_missing(tmp_path: Path) -> None:
    """Written where it was measured; what a file leaves out is 0, and a file without any says nothing of it."""
    path = tmp_path / "table.json"
    measured = replace(TABLE, engine=EngineTime(5, 4, 3, 2, 6, 1))
    measured.save(path)
    assert LatencyTable.load(path).engine == measured.engine
    assert LatencyTable.load(damaged(path, {"engine": {"open_ns": 9}})).engine == EngineTime(9)
    TABLE.save(path)
    assert "engine" not in json.loads(path.read_text())
    assert LatencyTable.load(path).engine is None


@given(st.integers(1, 5), st.integers(1, 10**12), st.integers(0, 10**9), st.sets(st.integers(2, 64), max_size=4))
def test_any_table_round_trips(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, fixed_ns: int, per_row_ns: int, sizes: set[int]
) -> None:
    """Tables of the core are saved as well, whatever their size, without a loss."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    table = latency.LatencyTable.uniform("m", nodes, fixed_ns, per_row_ns, [1, *sorted(sizes)])
    profiles.save(table, path)
    loaded = profiles.load(path)
    assert (loaded.nodes, loaded.batch_sizes, loaded.median_ns) == (table.nodes, table.batch_sizes, table.median_ns)
    assert loaded.provenance == {"synthetic": True}


@pytest.mark.parametrize(
    ("change", "drop", "culprit"),
    [
        ({"format": "something else"}, None, "not a latency table"),
        ({"version": 2}, None, "version 2"),
        ({}, "version", "version None"),
        ({}, "nodes", "'nodes' is missing"),
        ({}, "model", "'model' is missing"),
        ({}, "provenance", "'provenance' is missing"),
        ({"model": 3}, None, "'model' must be a str"),
        ({"nodes": ["a"]}, None, "node 0 must be an object"),
        ({"nodes": []}, None, "no nodes"),
        ({"nodes": [{"name": "a", "median_ns": [1, None], "high_ns": [1, 1]}]}, None, "without holes, got None"),
        ({"nodes": [{"name": "a", "median_ns": [1, 1.5], "high_ns": [1, 1]}]}, None, "got 1.5"),
        ({"nodes": [{"name": "a", "median_ns": [1, True], "high_ns": [1, 1]}]}, None, "got True"),
        ({"nodes": [{"name": "a", "median_ns": [1], "high_ns": [1, 1]}]}, None, "'a' has 1 median times"),
        ({"nodes": [{"name": "a", "median_ns": [1, 0], "high_ns": [1, 1]}]}, None, "'a' at batch 4"),
        ({"nodes": [{"name": "a", "median_ns": [1, 1], "high_ns": [1, 1]}] * 2}, None, "two nodes are called 'a'"),
        ({"batch_sizes": [4, 1]}, None, "must increase from 1"),
        ({"batch_sizes": [2, 4]}, None, "must increase from 1"),
        ({"engine": None}, None, "'engine' must be a dict, got None"),
        ({"engine": {"open_ns": 1, "close_ns": 1}}, None, "'engine' holds 'open_ns', .*, got 'close_ns'"),
        ({"engine": {"open_ns": 0.5}}, None, "engine time: open_ns must be a whole number"),
    ],
)
def test_damaged_files(tmp_path: Path, change: dict[str, Any], drop: str | None, culprit: str) -> None:
    """Each way a table can be wrong is named, together with the file."""
    path = damaged(tmp_path / "bad.json", change, drop)
    with pytest.raises(InvalidInput, match=culprit) as caught:
        LatencyTable.load(path)
    assert "bad.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"format": "lazybatch-lat', b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_not_json(tmp_path: Path, content: bytes) -> None:
    """Empty, cut off, of another kind, not text, absurdly nested: one clear error each."""
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"bad\.json"):
        LatencyTable.load(path)


def test_missing_and_unwritable(tmp_path: Path) -> None:
    """A file that is not there, a folder that is not there, provenance that is not JSON."""
    with pytest.raises(InvalidInput, match="No such file"):
        LatencyTable.load(tmp_path / "nothing.json")
    with pytest.raises(InvalidInput, match="cannot write"):
        TABLE.save(tmp_path / "no/such/table.json")
    with pytest.raises(InvalidInput, match="cannot write"):
        TABLE.save(tmp_path)
    odd = LatencyTable("m", ("a",), (1,), ((1,),), ((1,),), {"machine": object()})
    with pytest.raises(InvalidInput, match="not all of it is JSON"):
        odd.save(tmp_path / "table.json")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file it leads to is replaced, or made."""
    (tmp_path / "folder").mkdir()
    for content in (None, "old"):
        target, link = tmp_path / "folder" / f"{content}.json", tmp_path / f"{content}.json"
        if content is not None:
            target.write_text(content)
        link.symlink_to(target)
        TABLE.save(link)
        assert link.is_symlink()
        assert LatencyTable.load(target) == TABLE


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    """A pipe, also through a link: its reader gets the table, and nothing is put in its place or left beside it."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        for path in (pipe, link):
            TABLE.save(path)
            assert json.loads(os.read(reader, 1 << 16))["model"] == "m"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()
    assert {entry.name for entry in tmp_path.iterdir()} == {"pipe", "link"}


def test_machine_and_versions_are_json() -> None:
    """The description of this machine can be written to a file and names what times depend on."""
    here = machine()
    assert json.loads(json.dumps(here)) == here
    assert {"cpu", "cores", "arch", "system", "release"} <= here.keys()
    assert here["cores"] >= 1  # type: ignore[operator]
    assert {"python", "numpy"} <= versions().keys()


def test_a_table_of_this_model_and_machine_passes() -> None:
    """Same nodes, same fingerprint, same machine; a table that claims nothing passes by its nodes."""
    check_table(LatencyTable("m", ("a", "b"), (1,), ((1,), (1,)), ((1,), (1,))), FakeModel())
    mine = {"fingerprint": "f" * 64, "machine": machine()}
    check_table(LatencyTable("m", ("a", "b"), (1,), ((1,), (1,)), ((1,), (1,)), mine), FakeModel())


def test_other_nodes_are_refused_even_when_foreign_is_allowed() -> None:
    """A table with other nodes cannot be used at all; both sides are named."""
    with pytest.raises(TableMismatch, match="'m' has 3 nodes, the latency table has 2"):
        check_table(TABLE, FakeModel(nodes=("a", "b", "c")), allow_foreign=True)
    with pytest.raises(TableMismatch, match="'x' at position 1, the latency table has 'b'"):
        check_table(TABLE, FakeModel(nodes=("a", "x")))


def test_other_model_is_refused_unless_allowed() -> None:
    """Another fingerprint is another file, partition or runtime."""
    other = FakeModel(name="n", fingerprint="e" * 64)
    with pytest.raises(TableMismatch, match=r"model 'm' \(ffffffffffff…\), this is model 'n' \(eeeeeeeeeeee…\)"):
        check_table(TABLE, other)
    check_table(TABLE, other, allow_foreign=True)


def test_other_machine_is_refused_unless_allowed() -> None:
    """Other cores are another machine; another kernel release is not."""
    times = (1, ((1,), (1,)), ((1,), (1,)))
    here = machine()
    for key, value, foreign in (("cores", 1_000, True), ("cpu", "abacus", True), ("release", "0.0", False)):
        table = LatencyTable("m", ("a", "b"), times[:1], times[1], times[2], {"machine": here | {key: value}})
        if foreign:
            with pytest.raises(TableMismatch, match=f"{key} {value!r} there, {here[key]!r} here"):
                check_table(table, FakeModel())
        check_table(table, FakeModel(), allow_foreign=foreign)


def test_a_table_of_another_device_is_refused_unless_allowed() -> None:
    """Of the CPU for a model on an accelerator, the other way round, and of another accelerator."""
    sides = (None, "CUDAExecutionProvider", "abacus")
    for there in sides:
        times = ((1,), ((1,), (1,)), ((1,), (1,)))
        table = LatencyTable("m", ("a", "b"), *times, {"machine": machine(there)})
        assert ("accelerator" in machine(there)) is (there is not None)
        for here in sides:
            if there != here:
                with pytest.raises(TableMismatch, match=f"another machine: accelerator {there!r} there, {here!r} here"):
                    check_table(table, FakeModel(accelerator=here))
            check_table(table, FakeModel(accelerator=here), allow_foreign=there != here)


def test_another_number_of_threads_is_refused_unless_allowed() -> None:
    """Times hold for the threads they were measured with; where either side does not say, nothing is claimed."""
    times = ((1,), ((1,), (1,)), ((1,), (1,)))
    table = LatencyTable("m", ("a", "b"), *times, {"threads": 2})
    with pytest.raises(TableMismatch, match="measured with 2 threads, here the model has 4"):
        check_table(table, FakeModel(threads=4))
    check_table(table, FakeModel(threads=4), allow_foreign=True)
    check_table(table, FakeModel(threads=2))
    check_table(table, FakeModel())
    check_table(LatencyTable("m", ("a", "b"), *times), FakeModel(threads=4))


def test_tables_of_other_lengths_are_kept(tmp_path: Path) -> None:
    """A padded model's table holds one per shorter length, also in its file."""
    both = replace(TABLE, shorter={16: replace(TABLE, median_ns=((1, 2), (3, 4)))})
    both.save(tmp_path / "t.json")
    loaded = LatencyTable.load(tmp_path / "t.json")
    assert loaded == both
    assert loaded.at(16).median_ns == ((1, 2), (3, 4))
    one = loaded.at(16)
    assert isinstance(one, LatencyTable)
    one.save(tmp_path / "16.json")
    assert LatencyTable.load(tmp_path / "16.json") == both.at(16)
    assert replace(loaded, shorter={}) == TABLE


@pytest.mark.parametrize("shorter", [{"a": {}}, {"0": {}}, {"16": []}, [], {"16": {"model": "m"}}])
def test_damaged_tables_of_other_lengths_are_refused(shorter: Any, tmp_path: Path) -> None:
    """The error names the file."""
    path = damaged(tmp_path / "t.json", {"shorter": shorter})
    with pytest.raises(InvalidInput, match=r"latency table .*t\.json"):
        LatencyTable.load(path)
