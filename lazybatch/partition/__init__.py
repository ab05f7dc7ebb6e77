"""Model files become node graphs and runnable pieces.

Owns: a folder per framework (`onnx`, `torch`), the proof that rows may be joined (`proof`), and what these share.
Must not know: how pieces are run on rows, the scheduler.
"""
