"""Programs: rows go through stages, chains and loops, each at its own pace.

Owns: a program and its models put together, and its rows from stage to stage.
Must not know: which runtime runs the nodes, the scheduler.
"""
