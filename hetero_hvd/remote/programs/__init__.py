"""Programs whose source is sent to a node and runs there by itself: standard library only."""
