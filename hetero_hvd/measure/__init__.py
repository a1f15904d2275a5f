"""What `bench-comm` and the network's part of `benchmark` measure, and what `simulate` runs."""
