"""Real clusters of Slurm and Ray on this machine, and jobs on them."""
