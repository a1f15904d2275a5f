"""Streams of samples that are stored once: their numbers, times, bytes and sessions; pure."""
