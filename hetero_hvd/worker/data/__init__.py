"""Which samples this worker loads, in which order and with which random numbers."""
