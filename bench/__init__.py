"""Benchmark scripts, run from the checkout; each writes rows, provenance and figures as JSON."""
