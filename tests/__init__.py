"""The tests; what `kit` has is for the benchmarks too."""
