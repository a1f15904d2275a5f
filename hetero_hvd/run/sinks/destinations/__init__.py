"""Where samples can go: a module for each kind, the only one that knows its library."""
