"""Nodes run by ONNX Runtime: sessions, pieces, and rows that lie in buffers kept from one sub-batch to the next."""
