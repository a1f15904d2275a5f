"""Jobs of Slurm: which nodes are granted, until when and what follows then; and those of agents."""
