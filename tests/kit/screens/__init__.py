"""What people look at: a terminal, and a run to be shown on it and on a page."""
