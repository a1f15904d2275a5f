"""The curves of a run: what is kept of them, and how they are thinned to pixels."""
