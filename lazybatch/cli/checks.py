"""The command ``check``: may rows share a batch, and does the chain of nodes do what the whole model does?

Owns: what the command checks and says, and when the check fails.
Must not know: how options are read from the command line; how anything is proved or measured.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lazybatch.checking import CheckReport, ProgramReport, StageReport, check
from lazybatch.cli.measuring import read_rows, seconds_of
from lazybatch.cli.output import Report, aligned
from lazybatch.loading import load, takes_examples
from lazybatch.program.file import is_program

_ANSWERS = {
    True: "bit for bit those of the whole model",
    False: "NOT those of the whole model",
    None: "not compared",
}


def run(path: Path, preempt_within_ms: float | None, inputs: Path | None, threads: int | None) -> Report:
    """Check and report; holds when rows can join and the chain's answers are the whole model's, bit for bit. Of a
    program, too: when rows that join and leave at random get the answers they get alone.

    Raises `LazyBatchError` for whatever is wrong with the options, the files or the model.
    """
    rows = None if inputs is None else read_rows(inputs)
    within_s = seconds_of(preempt_within_ms)
    model = load(path, preempt_within=within_s, example_inputs=rows if takes_examples(path) else None, threads=threads)
    found = check(model, inputs=rows) if is_program(path) else check(model)
    if isinstance(found, ProgramReport):
        values = {**asdict(found), "identical": found.identical}
        holds = found.joinable and found.identical is not False and found.equal is not False
        return Report(values, _program_lines(found), holds=holds)
    return Report(asdict(found), _lines(found), holds=found.joinable and found.identical is not False)


def _lines(found: CheckReport) -> list[str]:
    pairs = [
        ("nodes", str(found.nodes)),
        ("joinable", "yes" if found.joinable else f"no: {found.reason}"),
        *_cost(found),
        *(("note", note) for note in found.notes),
    ]
    return [found.model, *aligned(pairs)]


def _cost(found: CheckReport | StageReport) -> list[tuple[str, str]]:
    ratio = "-" if found.chain_over_whole is None else f"{found.chain_over_whole:.3f} times the time of the whole model"
    return [
        ("joined vs alone", "-" if found.max_abs_diff is None else f"largest difference {found.max_abs_diff:g}"),
        ("chain of nodes", ratio),
        ("answers", _ANSWERS[found.identical]),
    ]


def _program_lines(found: ProgramReport) -> list[str]:
    lines = [f"{found.model}: {found.nodes} nodes in {len(found.stages)} stages"]
    for stage in found.stages:
        lines += _stage_lines(stage)
    trips = ", ".join(f"{loop} up to {most}" for loop, most in found.trips_max_seen.items())
    verdict = {
        True: "the same answers",
        False: f"DIFFERENT answers: {'; '.join(found.different)}",
        None: "not tried",
    }[found.equal]
    gap = "" if found.joined_max_abs_diff is None else f", largest difference {found.joined_max_abs_diff:g}"
    pairs = [
        ("joinable", "yes" if found.joinable else f"no: {found.reason}"),
        ("alone and joined", f"{found.rows} rows, {verdict}{gap}"),
        (
            "that run",
            f"{found.merges} merges, {found.left_early} rows left before their mates; iterations: {trips or '-'}",
        ),
        *(("note", note) for note in found.notes),
    ]
    return [*lines, *aligned(pairs)]


def _stage_lines(stage: StageReport) -> list[str]:
    kind = "loop" if stage.loop else "chain"
    pairs = [("  joinable", "yes" if stage.joinable else f"no: {stage.reason}")]
    if stage.same_iteration is not None:
        words = "yes" if not stage.same_iteration else f"no, at equal iterations only: {stage.same_iteration_reason}"
        pairs.append(("  joins at any iteration", words))
    pairs += [(f"  {name}", words) for name, words in _cost(stage)]
    pairs += [("  note", note) for note in stage.notes]
    return [f"{kind} {stage.stage!r}, {stage.nodes} node{'s' if stage.nodes > 1 else ''}", *aligned(pairs)]
