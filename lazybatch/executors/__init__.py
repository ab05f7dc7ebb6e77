"""Running nodes on rows: gather, run, park, merge, scatter.

Folders: `ort` and `torch`, the two runtimes; `program`, rows that go through stages and loops; `padding`, rows of many
lengths. Modules beside them: what these share, and models without a runtime (`callable`, `simulated`).
"""
