"""May rows of different requests share a batch? Proof by running.

Owns: probes, what they prove, and the search for the axes that are the batch. Must not know: any framework, cuts.
"""
