"""The process that judges backend cases: an order on stdin, one line of JSON per event on stdout.

Owns: the protocol of `tests.backend.shards`: "begin" before a case is touched, its outcome after.
Must not know: what to do when it dies.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.backend import corpus, judge
from tests.backend.outcome import Outcome

MODES: dict[str, Callable[[corpus.BackendCase, Path], Outcome]] = {"as_is": judge.as_is, "relaxed": judge.relaxed}


def _say(event: dict[str, object]) -> None:
    print("@@" + json.dumps(event), flush=True)


def main(mode: str) -> None:
    """Judge every case of the ordered sources but those to skip."""
    order = json.load(sys.stdin)
    skip = set(order["skip"])
    for source in order["sources"]:
        for case in corpus.load(source):
            if case.id in skip:
                continue
            _say({"begin": case.id})
            with tempfile.TemporaryDirectory() as folder:
                os.environ["LAZYBATCH_CACHE"] = folder
                _say(MODES[mode](case, Path(folder)).as_json())


if __name__ == "__main__":
    main(sys.argv[1])
