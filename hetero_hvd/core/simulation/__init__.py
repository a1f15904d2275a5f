"""Clusters that exist as numbers, to try the rules of `core.balance` on."""
