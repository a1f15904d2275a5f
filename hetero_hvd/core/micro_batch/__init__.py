"""How many samples go through the model at once: what pays, and what the memory holds."""
