"""Measurements on the machine where they run."""
