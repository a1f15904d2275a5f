"""The hub over HTTP: what it knows, sessions, and samples of other programs."""
