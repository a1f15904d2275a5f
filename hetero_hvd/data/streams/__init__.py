"""Streams that have shards, read in parts, and whether each worker reads the same one."""
