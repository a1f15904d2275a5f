"""What this machine knows of its GPUs."""
