"""What `scripts/gpu-check` runs: each part in a module, with the standard library alone."""
