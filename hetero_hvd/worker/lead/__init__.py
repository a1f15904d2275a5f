"""A run without our driver: rank 0 plans, records and shows it in a thread; the others tell it."""
