"""Rows of many lengths in one batch.

Owns: a padding rule, the trial that it changes no answer, and the model it serves.
Must not know: which runtime runs the nodes, the scheduler.
"""
