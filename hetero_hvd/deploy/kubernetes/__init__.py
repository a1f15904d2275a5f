"""Manifests of a driver and its agents, as plain data."""
