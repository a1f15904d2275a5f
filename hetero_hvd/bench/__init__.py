"""Measures the product against its claims and against its peers; simulates clusters."""
