"""Running nodes on rows: gather, run, park, merge, scatter.

Owns: `ort` and `torch`, a folder per runtime; `program`, rows that go through stages and loops; `padding`, rows of many
lengths; beside them what these share, and models without a runtime (`callable`, `simulated`).
Must not know: how models are cut, what the scheduler decides, futures.
"""
