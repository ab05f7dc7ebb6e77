"""The command ``check``: may rows share a batch, and does the chain of nodes do what the whole model does?

Owns: what the command checks and says, and when the check fails.
Must not know: how options are read from the command line; how anything is proved or measured.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lazybatch.checking import CheckReport, check
from lazybatch.cli.measuring import read_rows, seconds_of
from lazybatch.cli.output import Report, aligned
from lazybatch.loading import load, takes_examples


def run(path: Path, preempt_within_ms: float | None, inputs: Path | None, threads: int | None) -> Report:
    """Check and report; holds when rows can join and the chain's answers are the whole model's, bit for bit.

    Raises `LazyBatchError` for whatever is wrong with the options, the files or the model.
    """
    rows = None if inputs is None else read_rows(inputs)
    within_s = seconds_of(preempt_within_ms)
    examples = rows if takes_examples(path) else None
    model = load(path, preempt_within=within_s, example_inputs=examples, threads=threads)
    found = check(model)
    return Report(asdict(found), _lines(found), holds=found.joinable and found.identical is not False)


def _lines(found: CheckReport) -> list[str]:
    ratio = "-" if found.chain_over_whole is None else f"{found.chain_over_whole:.3f} times the time of the whole model"
    answers = {
        True: "bit for bit those of the whole model",
        False: "NOT those of the whole model",
        None: "not compared",
    }
    pairs = [
        ("nodes", str(found.nodes)),
        ("joinable", "yes" if found.joinable else f"no: {found.reason}"),
        ("joined vs alone", "-" if found.max_abs_diff is None else f"largest difference {found.max_abs_diff:g}"),
        ("chain of nodes", ratio),
        ("answers", answers[found.identical]),
        *(("note", note) for note in found.notes),
    ]
    return [found.model, *aligned(pairs)]
