"""Partitioning of torch modules: export, prove what may be joined, cut where it is cheap, keep pieces as graphs.

Owns: the public names. Must not know: how rows are served.
"""

from lazybatch.partition.torch.build import load_program, partition_torch
from lazybatch.partition.torch.flat import Flat
from lazybatch.partition.torch.join import identity
from lazybatch.partition.torch.source import Source, read_source

__all__ = ["Flat", "Source", "identity", "load_program", "partition_torch", "read_source"]
