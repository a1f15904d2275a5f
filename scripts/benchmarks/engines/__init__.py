"""What it takes where somebody else has the machines: Slurm and Ray, real ones, on this machine."""
