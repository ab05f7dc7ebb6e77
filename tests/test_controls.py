"""The cache of solved controls: what is kept, when it is found again, and what a bad file leads to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lazybatch import controls, loop_solver
from lazybatch.controls import cached_control, cached_loop_solution, control_of, loop_controls_of
from lazybatch.core.control import Control
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.loop_times import LoopTimes
from lazybatch.errors import InvalidInput
from lazybatch.loop_solver import LoopSolution, solve_loop_times
from lazybatch.solver import solve_times

TIMES_NS = (1_000_000, 1_100_000, 1_150_000)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("LAZYBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were solved rather than read."""
    names: list[str] = []

    def counted(model: str, times_ns: tuple[int, ...]) -> Control:
        names.append(model)
        return solve_times(model, times_ns)

    monkeypatch.setattr(controls, "solve_times", counted)
    return names


def files(folder: Path) -> list[Path]:
    """Everything that lies in the cache, hidden files too."""
    return sorted(folder.iterdir())


def test_a_second_start_reads_what_the_first_solved(folder: Path, solved: list[str]) -> None:
    """One file is written, nothing else is left; what is read back is equal to what was solved, to the last bit."""
    first = cached_control("m", TIMES_NS)
    assert [path.suffix for path in files(folder)] == [".npz"]
    second = cached_control("m", TIMES_NS)
    assert solved == ["m"]
    assert second == first == solve_times("m", TIMES_NS)
    kinds = {type(number) for one in second.solutions for number in (*one.value, *one.action, *one.horizon_ns)}
    assert kinds == {float, int}, "plain numbers: the core knows no NumPy"


def test_the_key_is_the_times_not_the_name(folder: Path, solved: list[str]) -> None:
    """A model of the same times shares the entry under its own name; other times, or another maximum, do not."""
    cached_control("m", TIMES_NS)
    assert cached_control("other", TIMES_NS).model == "other"
    assert solved == ["m"]
    cached_control("m", TIMES_NS[:2])
    cached_control("m", (*TIMES_NS[:2], TIMES_NS[2] + 1))
    assert len(solved) == len(files(folder)) == 3


def test_another_solver_solves_anew(solved: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the solver, its old answers are not used."""
    cached_control("m", TIMES_NS)
    monkeypatch.setattr(controls, "SOLVER", -1)
    cached_control("m", TIMES_NS)
    assert len(solved) == 2


def _damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("not an archive")
        case "cut short":
            path.write_bytes(whole[: len(whole) // 2])
        case "a flipped byte":
            middle = len(whole) // 2
            path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
        case "an unknown compression":
            entry = whole.rindex(b"PK\x01\x02")
            path.write_bytes(whole[: entry + 10] + b"\x63\x00" + whole[entry + 12 :])
        case "seemingly encrypted":
            entry = whole.rindex(b"PK\x01\x02")
            path.write_bytes(whole[: entry + 8] + b"\x01\x00" + whole[entry + 10 :])
        case "a directory":
            path.unlink()
            path.mkdir()
            (path / "inside").write_text("")
        case _:
            arrays = dict(np.load(path))
            match how:
                case "an array missing":
                    del arrays["ahead"]
                case "arrays that do not fit":
                    arrays["points"] = arrays["points"] + 1
                case "fewer rates":
                    arrays["rates"] = arrays["rates"][:-1]
                case "not a number":
                    arrays["values"][0, 0] = np.nan
                case "pickled objects":
                    arrays["values"] = np.array([object()], dtype=object)
            np.savez(path, **arrays)


@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "text",
        "cut short",
        "a flipped byte",
        "an unknown compression",
        "seemingly encrypted",
        "an array missing",
        "arrays that do not fit",
        "fewer rates",
        "not a number",
        "pickled objects",
    ],
)
def test_damaged_files_are_solved_anew(folder: Path, solved: list[str], how: str) -> None:
    """Whatever happened to a file: the right control comes back, and the file is whole again afterwards."""
    first = cached_control("m", TIMES_NS)
    _damage(files(folder)[0], how)
    assert cached_control("m", TIMES_NS) == first
    assert cached_control("m", TIMES_NS) == first
    assert len(solved) == 2


def test_a_place_that_is_taken(folder: Path, solved: list[str]) -> None:
    """Where a directory stands in the file's place nothing is kept, nothing fails, and no draft is left behind."""
    cached_control("m", TIMES_NS)
    _damage(files(folder)[0], "a directory")
    assert cached_control("m", TIMES_NS) == solve_times("m", TIMES_NS)
    assert len(files(folder)) == 1
    assert len(solved) == 2


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, solved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache path below a plain file: controls are solved every time, and that is all."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAZYBATCH_CACHE", str(tmp_path / "file" / "cache"))
    assert cached_control("m", TIMES_NS) == cached_control("m", TIMES_NS)
    assert len(solved) == 2


def test_files_used_longest_ago_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded: tables measured anew at every start do not fill it, and reading counts as use."""
    monkeypatch.setattr(controls, "KEPT", 2)
    first = (1_000, 1_100)
    cached_control("m", first)
    (kept,) = files(folder)
    os.utime(kept, ns=(0, 0))
    cached_control("m", (2_000, 2_100))
    (second,) = set(files(folder)) - {kept}
    os.utime(second, ns=(1, 1))
    cached_control("m", first)
    cached_control("m", (3_000, 3_100))
    assert len(files(folder)) == 2
    assert kept in files(folder)


def test_the_control_of_a_lane() -> None:
    """A lane's control follows its maximum, its padded sizes and whether rows join; without a table there is none."""
    graph = NodeGraph.chain("m", ("a", "b"))
    table = LatencyTable("m", ("a", "b"), (1, 4), ((500, 800),) * 2, ((500, 800),) * 2)
    assert control_of(LaneSpec(graph, table, max_batch_size=4)) == solve_times("m", (1000, 1200, 1400, 1600))
    assert control_of(LaneSpec(graph, table, max_batch_size=4, allowed_sizes=(2, 4))) == solve_times(
        "m", (1200, 1200, 1600, 1600)
    )
    assert control_of(LaneSpec(graph, table, max_batch_size=4, joinable=False)) == solve_times("m", (1000,))
    with pytest.raises(InvalidInput, match="'m': a control is solved from a latency table"):
        control_of(LaneSpec(graph))


LOOP_TIMES = LoopTimes((0.0, 20e6, 23e6), (0.0, 14e6, 15e6), 5.0)


@pytest.fixture
def loops_solved(monkeypatch: pytest.MonkeyPatch) -> list[LoopTimes]:
    """Loops that were solved rather than read."""
    found: list[LoopTimes] = []

    def counted(times: LoopTimes) -> LoopSolution:
        found.append(times)
        return solve_loop_times(times)

    monkeypatch.setattr(controls, "solve_loop_times", counted)
    return found


def test_loops_are_solved_once(folder: Path, loops_solved: list[LoopTimes]) -> None:
    """What is read back is equal to what was solved, in plain numbers; other times are another entry."""
    first = cached_loop_solution("m", LOOP_TIMES)
    assert [path.name[:5] for path in files(folder)] == ["loop-"]
    assert cached_loop_solution("other", LOOP_TIMES) == first == solve_loop_times(LOOP_TIMES)
    assert len(loops_solved) == 1
    again = cached_loop_solution("m", LOOP_TIMES)
    assert {type(number) for part in (again.rates_per_ns, again.mean_latency_ns) for number in part} == {float}
    assert {type(number) for needed in again.thresholds for number in needed} == {int}
    cached_loop_solution("m", LOOP_TIMES._replace(trips=6.0))
    assert len(loops_solved) == len(files(folder)) == 2


def test_another_loop_solver_solves_anew(loops_solved: list[LoopTimes], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the solver, or of the loads it solves, old answers are not used."""
    cached_loop_solution("m", LOOP_TIMES)
    monkeypatch.setattr(loop_solver, "SOLVER", -1)
    cached_loop_solution("m", LOOP_TIMES)
    monkeypatch.setattr(loop_solver, "LOADS", (0.5,))
    assert len(cached_loop_solution("m", LOOP_TIMES).rates_per_ns) == 1
    assert len(loops_solved) == 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rates", lambda array: array[:-1]),
        ("rates", lambda array: array[::-1]),
        ("rates", lambda array: array.astype(int)),
        ("means", lambda array: array * np.nan),
        ("thresholds", lambda array: array[:, :-1]),
        ("thresholds", lambda array: array - 1),
        ("thresholds", lambda array: array.astype(float)),
        ("thresholds", lambda array: array * 2**31),
        ("thresholds", None),
    ],
)
def test_damaged_loop_files_are_solved_anew(
    folder: Path, loops_solved: list[LoopTimes], name: str, change: Callable[[np.ndarray], np.ndarray] | None
) -> None:
    """Arrays missing, of another shape or kind, or that no control could hold: the right answer comes back."""
    first = cached_loop_solution("m", LOOP_TIMES)
    path = files(folder)[0]
    arrays = dict(np.load(path))
    if change is None:
        path.write_bytes(path.read_bytes()[:-30])
    else:
        arrays[name] = change(arrays[name])
        np.savez(path, **arrays)
    assert cached_loop_solution("m", LOOP_TIMES) == first
    assert cached_loop_solution("m", LOOP_TIMES) == first
    assert len(loops_solved) == 2


def test_the_controls_of_a_lanes_loops(loops_solved: list[LoopTimes]) -> None:
    """One per loop, named; none where rows join at equal iterations only, for nobody can be let in there."""
    table = LatencyTable("m", ("a", "b", "c"), (1, 4), ((500, 800),) * 3, ((500, 800),) * 3)
    loops = (Loop("first", 0, 1, same_iteration=True), Loop("second", 2, 3, trips_max=4))
    spec = LaneSpec(NodeGraph.chain("m", table.nodes, loops), table, max_batch_size=4)
    first, second = loop_controls_of(spec)
    assert first is None
    assert second is not None
    assert (second.model, second.loop) == ("m", "second")
    assert len(loops_solved) == 1
    assert loop_controls_of(spec) == (None, second)
    assert len(loops_solved) == 1
    with pytest.raises(InvalidInput, match="'m': a control is solved from a latency table"):
        loop_controls_of(LaneSpec(spec.graph))
