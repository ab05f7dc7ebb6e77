"""Partitioning of ONNX models: optimise whole, prove what may be joined, cut where it is cheap, write pieces.

Owns: the public names. Must not know: how rows are served.
"""

from lazybatch.partition.onnx.build import digest_of, partition_onnx

__all__ = ["digest_of", "partition_onnx"]
