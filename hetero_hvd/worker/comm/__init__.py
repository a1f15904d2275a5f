"""Collective operations: the door to Horovod, and what is built on it alone."""
