"""What the kernel counts of processes and control groups."""
