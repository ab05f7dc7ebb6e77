"""The demonstration: two trained models served under load, each policy in turn, on lines of text drawn here."""
