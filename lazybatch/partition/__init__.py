"""Model files become node graphs and runnable pieces."""
