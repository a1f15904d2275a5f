"""A run's records on disk: the catalogue run.sqlite, written beside the loop, read by anyone."""
