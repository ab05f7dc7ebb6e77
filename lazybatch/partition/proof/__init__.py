"""May rows of different requests share a batch? Proof by running, whatever the framework."""
