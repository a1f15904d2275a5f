"""Which worker holds which part of the optimizer's state, by the memory that each has left."""
