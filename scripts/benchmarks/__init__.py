"""Measures the product against its claims and against its peers, and what it does at faults."""
