"""Rows of many lengths in one batch: a padding rule, the trial that it changes no answer, the model it serves."""
