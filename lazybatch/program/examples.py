"""Arrays from ``.npz`` files: what a stage is probed with, and rows that users give on the command line.

Owns: `read_arrays`. Must not know: what the arrays are for.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvalidInput


def read_arrays(path: str | Path, what: str) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file by name. ``what`` they are is for messages, in the plural.

    Raises `InvalidInput` naming the file.
    """
    try:
        with Path(path).open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise InvalidInput(f"the {what} {str(path)!r} must be an .npz file with one array per input")
            with file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise InvalidInput(f"cannot read the {what} {str(path)!r}: {error.strerror or error}") from error
    except InvalidInput:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"the {what} {str(path)!r} are damaged or no .npz file ({error})") from error
