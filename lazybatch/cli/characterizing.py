"""The command ``characterize``: what recorded lengths say of how often a loop runs.

Owns: what the command checks and says.
Must not know: how options are read from the command line; how lengths are guessed.
"""

from __future__ import annotations

from pathlib import Path

from lazybatch.cli.output import Report
from lazybatch.core.lengths import LengthGuess
from lazybatch.errors import InvalidInput
from lazybatch.lengths import ANY, Lengths, load_lengths
from lazybatch.words import aligned, counted


def run(path: Path, output: Path, loop: str, coverage: float) -> Report:
    """Read, characterise, write and report. Raises `InvalidInput` for whatever is wrong with the options or files."""
    if not loop:
        raise InvalidInput("--loop must be the name of a loop")
    if not 0 < coverage <= 1:
        raise InvalidInput(f"--coverage must be a share above 0 and at most 1, got {coverage}")
    if not output.parent.is_dir() or output.is_dir():
        raise InvalidInput(f"cannot write {str(output)!r}: no such folder, or a folder itself")
    seen = load_lengths(path, loop, coverage)
    seen.save(output)
    values = {
        "lengths": str(output),
        "coverage": coverage,
        "loops": {name: _values(guess, _paper(seen, name)) for name, guess in seen.items()},
    }
    lines = [line for name, guess in seen.items() for line in _lines(name, guess, _paper(seen, name), sized=seen.sized)]
    return Report(values, [*lines, f"written: {output}; give it with --lengths, or LazyBatcher(lengths=...)"])


def _paper(seen: Lengths, loop: str) -> int:
    """The one number that covers the share of all rows, whatever their input sizes."""
    return LengthGuess.of([length for _, length in seen.pairs[loop]], coverage=seen.coverage).covering(1)


def _values(guess: LengthGuess, steps: int) -> dict[str, object]:
    return {
        "rows": guess.seen,
        "dec_timesteps": steps,
        "mean": guess.mean_trips,
        "shortest": min(group.shortest for group in guess.groups),
        "longest": max(len(group.covering) for group in guess.groups),
        "groups": [
            {
                "input_size_max": group.size_max,
                "rows": group.rows,
                "dec_timesteps": group.covering[0],
                "mean": group.mean[0],
                "longest": len(group.covering),
            }
            for group in guess.groups
        ],
    }


def _lines(name: str, guess: LengthGuess, steps: int, *, sized: bool) -> list[str]:
    title = "every loop" if name == ANY else f"loop {name!r}"
    share = f"{100 * guess.coverage:g} %"
    rows = counted(guess.seen, "row")
    lines = [f"{title}: {rows}, dec_timesteps {steps} (covers {share}), mean {guess.mean_trips:.1f}"]
    if not sized or len(guess.groups) == 1:
        return lines
    pairs = [
        (
            f"  input up to {group.size_max}",
            f"dec_timesteps {group.covering[0]}, mean {group.mean[0]:.1f}, longest {len(group.covering)}, "
            f"{counted(group.rows, 'row')}",
        )
        for group in guess.groups
    ]
    return lines + aligned(pairs)
