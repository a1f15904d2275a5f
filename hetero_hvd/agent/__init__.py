"""One process per node: announces it, and starts its workers when a driver asks."""
