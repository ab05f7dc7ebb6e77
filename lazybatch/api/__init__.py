"""What users hold: the batcher and the decorator.

Owns: `LazyBatcher`, `batched`, `BatchedFunction`. Must not know: how nodes are run, how the engine works inside.
"""

from lazybatch.api.batcher import LazyBatcher
from lazybatch.api.decorator import BatchedFunction, batched

__all__ = ["BatchedFunction", "LazyBatcher", "batched"]
