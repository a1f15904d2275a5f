"""A run as Prometheus scrapes it: its metrics, and where they are."""
