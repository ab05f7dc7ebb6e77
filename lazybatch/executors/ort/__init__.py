"""Nodes run by ONNX Runtime.

Owns: sessions, pieces, and rows that lie in buffers kept from one sub-batch to the next.
Must not know: the scheduler, other runtimes.
"""
