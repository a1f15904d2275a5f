"""What `benchmark` measures of the network and of the collectives, and what `simulate` runs."""
