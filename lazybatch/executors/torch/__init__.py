"""Nodes run by torch: pieces of an exported module, nodes recorded as CUDA graphs, and rows as tensors."""
