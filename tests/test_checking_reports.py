"""Reports of `check` in words: what the command prints, and what ``print`` of a report shows."""

from __future__ import annotations

from dataclasses import replace

from lazybatch.checking.reports import CheckReport, ProgramReport, StageReport

ONE = CheckReport("net", 3, True, None, 1e-6, 1.0125, True, ("a note",))
LOOP = StageReport("decoder", 1, True, True, None, True, "its input 'p'", None, None, None, ())
CHAIN = StageReport("encoder", 2, False, False, "it sums rows", None, None, 0.5, 1.0, False, ("slow",))
PROGRAM = ProgramReport(
    model="pair",
    nodes=3,
    joinable=False,
    reason="stage 'encoder': it sums rows",
    stages=(CHAIN, LOOP),
    rows=4,
    failed=0,
    equal=True,
    different=(),
    joined_max_abs_diff=0.25,
    trips_max_seen={"decoder": 7},
    merges=1,
    left_early=1,
    iterations=20,
    notes=(),
)


def test_a_model_of_one_file() -> None:
    """Its name, then one line per finding; a dash where nothing is known."""
    assert str(ONE).splitlines() == [
        "net",
        "nodes            3",
        "joinable         yes",
        "joined vs alone  largest difference 1e-06",
        "chain of nodes   1.012 times the time of the whole model",
        "answers          bit for bit those of the whole model",
        "note             a note",
    ]
    unknown = replace(ONE, joinable=False, reason="it sums rows", max_abs_diff=None, chain_over_whole=None, notes=())
    assert unknown.lines()[2:5] == ["joinable         no: it sums rows", "joined vs alone  -", "chain of nodes   -"]


def test_states_that_are_kept_in_place() -> None:
    """They are named, where there are any."""
    line = "  kept in place           'k', 'v': an iteration copies nothing of it, and answers the same"
    assert line in replace(LOOP, in_place=("k", "v")).lines()
    assert not [line for line in LOOP.lines() if "in place" in line]


def test_a_program() -> None:
    """Stage by stage, then as a whole; one of anything is singular."""
    assert str(PROGRAM).splitlines() == [
        "pair: 3 nodes in 2 stages",
        "chain 'encoder', 2 nodes",
        "  joinable         no: it sums rows",
        "  joined vs alone  largest difference 0.5",
        "  chain of nodes   1.000 times the time of the whole model",
        "  answers          NOT those of the whole model",
        "  note             slow",
        "loop 'decoder', 1 node",
        "  joinable                yes",
        "  joins at any iteration  no, at equal iterations only: its input 'p'",
        "  joined vs alone         -",
        "  chain of nodes          -",
        "  answers                 not compared",
        "joinable          no: stage 'encoder': it sums rows",
        "alone and joined  4 rows, the same answers, largest difference 0.25",
        "that run          1 merge, 1 row left before its mates; iterations: decoder up to 7",
    ]
    assert str(LOOP) == "\n".join(LOOP.lines())
    single = replace(PROGRAM, nodes=1, stages=(replace(LOOP, same_iteration=False),), rows=1, failed=1, equal=None)
    assert single.lines()[0] == "pair: 1 node in 1 stage"
    assert "  joins at any iteration  yes" in single.lines()
    assert "alone and joined  1 row, 1 of them without an answer, nothing to compare" in str(single)


def test_what_could_not_be_tried_or_differs() -> None:
    """No rows at all; answers that differ are told in capitals."""
    untried = replace(PROGRAM, rows=0, equal=None, joined_max_abs_diff=None)
    assert "alone and joined  0 rows, not tried\n" in str(untried)
    wrong = replace(PROGRAM, equal=False, different=("row 1: a", "row 2: b"))
    assert "4 rows, DIFFERENT answers: row 1: a; row 2: b" in str(wrong)


def test_identical_needs_all_stages() -> None:
    """One stage that differs is enough for no; one that could not be compared for nothing."""
    alike = replace(CHAIN, identical=True)
    assert PROGRAM.identical is False
    assert replace(PROGRAM, stages=(alike, LOOP)).identical is None
    assert replace(PROGRAM, stages=(alike, alike)).identical is True
