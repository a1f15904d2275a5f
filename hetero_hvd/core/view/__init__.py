"""What people and programs are shown of a run: its state, its events in words, its metrics."""
