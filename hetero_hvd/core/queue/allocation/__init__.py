"""Which job is given which devices: one after the other, then by exchanges."""
