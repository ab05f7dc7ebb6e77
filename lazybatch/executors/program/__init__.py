"""Programs: rows go through stages, chains and loops, each at its own pace, whichever runtime runs the nodes."""
