"""A job as it is submitted to our queue, written for a queue of others: Slurm's, or Kueue's."""
