"""Command line of the zoo: `python -m graphs list`, and `export` (ONNX) or `build` (torch) `--model NAME -o DIR`.

Owns: `main`, which says in one line what has to be installed.
Must not know: what the commands do (`graphs.command`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

OURS = ("graphs", "lazybatch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when all went well, 1 when a file differs from torch or cannot be made."""
    try:
        from graphs.command import run

        return run(arguments)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in OURS:
            raise
        needs = "this needs torch and onnx: make setup, or pip install 'lazybatch[torch,onnx]'"
        print(f"graphs: no package {missing.name!r}; {needs}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
