"""Sums over the workers: gradients in buckets, what forward passes change, and steps under way."""
