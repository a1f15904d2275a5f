"""Inside an allocation of Slurm: which nodes are granted, until when, and what follows then."""
