"""Faults on purpose, and how long they cost."""
