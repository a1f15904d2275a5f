"""Commands that measure machines, networks and rules."""
