"""Commands that show a run, live or recorded."""
