"""What runs in each worker process: data, steps, reductions, elastic state."""
