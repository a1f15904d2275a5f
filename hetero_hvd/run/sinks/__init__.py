"""A run's figures for other programs: a stream of samples, a small class for each destination."""
