"""Which devices ail, and which of these may leave the training for a while."""
