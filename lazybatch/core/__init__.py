"""The pure core: every scheduling decision, and nothing else (no clock, threads, frameworks or NumPy)."""
