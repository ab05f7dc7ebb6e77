"""Nodes run by torch.

Owns: pieces of an exported module, nodes recorded as CUDA graphs, and rows as tensors.
Must not know: the scheduler, other runtimes.
"""
