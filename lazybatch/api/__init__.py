"""What users hold: the batcher and the decorator.

Owns: `LazyBatcher`, `Stream`, `AsyncStream`, `batched`, `BatchedFunction`.
Must not know: how nodes are run, how the engine works inside.
"""

from lazybatch.api.batcher import LazyBatcher
from lazybatch.api.decorator import BatchedFunction, batched
from lazybatch.api.streaming import AsyncStream, Stream

__all__ = ["AsyncStream", "BatchedFunction", "LazyBatcher", "Stream", "batched"]
