"""What jobs have measured of the links of nodes, and of their models."""
