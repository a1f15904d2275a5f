"""What this worker measures of its steps, and how all workers learn of it."""
