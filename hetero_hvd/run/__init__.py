"""A run as it is followed, recorded and shown, whoever leads it: a driver, or rank 0 alone."""
