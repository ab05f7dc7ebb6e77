"""The command line.

Owns: `main`, the entry point of the command ``lazybatch``.
Must not know: what the commands do. The command line's own dependencies are an extra; without them there is one clear
line instead of a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""The exit status of a command that was interrupted, by a shell's custom."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit status: 0 good, 1 what was checked does not hold, 2 bad usage or input, 130 interrupted, 141
    nobody reads what is written."""
    try:
        from lazybatch.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print(
            f"error: the command line needs the package {error.name!r}; run `pip install 'lazybatch[cli]'`",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:  # imports take a second
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return run(sys.argv[1:] if argv is None else list(argv))
