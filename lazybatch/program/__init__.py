"""Programs: models made of chains and loops, as descriptions and as files.

Owns: the public names. Must not know: how models are loaded or run.
"""

from lazybatch.program.parts import Append, Carry, Feed, Reference, Repeat
from lazybatch.program.spec import Program, Stage

__all__ = ["Append", "Carry", "Feed", "Program", "Reference", "Repeat", "Stage"]
