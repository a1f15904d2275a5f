"""What to change about a run, how much that would bring, and how sure that is."""
