"""Who takes part in the training, beside what the balancer says of how much."""
