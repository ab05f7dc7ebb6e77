"""`python -m tests.backend [as_is|relaxed] [source ...]`: judge backend cases and print the counts."""

from __future__ import annotations

import json
import sys
import time

from tests.backend.corpus import sources
from tests.backend.outcome import Outcome, report
from tests.backend.shards import run_sources


def main(arguments: list[str]) -> None:
    """Judge what the command line names (all by default) and print the report; ``--json FILE`` keeps the outcomes."""
    keep = None
    if "--json" in arguments:
        at = arguments.index("--json")
        keep, arguments = arguments[at + 1], arguments[:at] + arguments[at + 2 :]
    mode, named = (arguments[0] if arguments else "as_is"), arguments[1:]
    chosen = [source for source in sources() if not named or any(name in source for name in named)]
    began = time.perf_counter()
    outcomes: list[Outcome] = run_sources(mode, chosen)
    print(report(outcomes))
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    loading = sum(outcome.seconds for outcome in outcomes)
    print(f"{time.perf_counter() - began:.0f} s; loading {loading:.0f} s in all, slowest:")
    print("\n".join(f"  {outcome.seconds:6.2f} s {outcome.id}" for outcome in slowest))
    if keep:
        with open(keep, "w") as file:
            json.dump([outcome.as_json() for outcome in outcomes], file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
