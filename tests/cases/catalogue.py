"""All cases, whichever module they are written in.

Owns: `CASES` and its use as test parameters.
Must not know: lazybatch.
"""

from __future__ import annotations

import pytest

from tests.cases import batch_claims, side_inputs, structures, values_and_ranks
from tests.cases.case import CASES

MODULES = (batch_claims, side_inputs, structures, values_and_ranks)
EVERY = [pytest.param(case, id=case.name) for case in CASES]
