"""Benchmark scripts, run from the checkout; each writes rows, provenance and figures as JSON.

Owns: measuring and comparing. Must not be known to `lazybatch`, which imports none of it.
"""
