"""Steps without fixed shares: each worker computes until the previous all-reduce ends."""
