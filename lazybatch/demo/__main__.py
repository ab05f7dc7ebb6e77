"""`python -m lazybatch.demo`: the demonstration without the command line's extra."""

from __future__ import annotations

import argparse
import sys

from lazybatch.demo import run_demo
from lazybatch.errors import LazyBatchError


def main() -> int:
    """Run it. 0: all answers were the whole models'; 1: some were not; 2: it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m lazybatch.demo", description=run_demo.__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", default="out/demo", metavar="DIR", help="folder for plot and trace (out/demo)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of arrivals per run; there are fifteen (default 6)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (default 0)")
    options = parser.parse_args()

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    try:
        found = run_demo(options.out, seconds=options.seconds, seed=options.seed, progress=progress)
    except LazyBatchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0 if found["answers_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
