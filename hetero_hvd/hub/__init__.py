"""One process per cluster: stores what agents tell of their nodes and cuts recordings of it."""
