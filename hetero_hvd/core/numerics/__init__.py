"""Sums that do not depend on their order, and losses that tell of a divergence."""
