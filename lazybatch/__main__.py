"""``python -m lazybatch``: the same as the command ``lazybatch``."""

import sys

from lazybatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
