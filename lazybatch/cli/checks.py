"""The command ``check``: may rows share a batch, and does the chain of nodes do what the whole model does?

Owns: when the check fails.
Must not know: how options are read from the command line; how anything is proved, measured or told.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lazybatch.checking import ProgramReport, check
from lazybatch.cli.measuring import read_rows, seconds_of
from lazybatch.cli.output import Report
from lazybatch.loading import load, takes_examples
from lazybatch.program.file import is_program


def run(path: Path, preempt_within_ms: float | None, inputs: Path | None, threads: int | None) -> Report:
    """Check and report; holds when rows can join and the chain's answers are the whole model's, bit for bit. Of a
    program, too: when rows that join and leave at random get the answers they get alone, and some of the rows that were
    given get one.

    Raises `LazyBatchError` for whatever is wrong with the options, the files or the model.
    """
    rows = None if inputs is None else read_rows(inputs)
    within_s = seconds_of(preempt_within_ms)
    model = load(path, preempt_within=within_s, example_inputs=rows if takes_examples(path) else None, threads=threads)
    found = check(model, inputs=rows) if is_program(path) else check(model)
    if isinstance(found, ProgramReport):
        values = {**asdict(found), "identical": found.identical}
        served = rows is None or found.failed < found.rows
        holds = found.joinable and found.identical is not False and found.equal is not False and served
        return Report(values, found.lines(), holds=holds)
    return Report(asdict(found), found.lines(), holds=found.joinable and found.identical is not False)
