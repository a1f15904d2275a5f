"""Processes of the driver that a hub starts for its queue."""
