"""Running nodes on rows: gather, run, park, merge, scatter."""
