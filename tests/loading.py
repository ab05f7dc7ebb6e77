"""Loading a model for a test: cut wherever a cut is proved, so that the chain is as long as it can be.

Owns: `load_fine`.
Must not know: how cuts are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lazybatch as lb

FINEST_S = 1e-9
"""No node is this short, so every provable cut is made."""


def load_fine(path: Path, **options: Any) -> Any:
    """`lazybatch.load`, with as many nodes as can be proved right."""
    return lb.load(path, preempt_within=FINEST_S, **options)
