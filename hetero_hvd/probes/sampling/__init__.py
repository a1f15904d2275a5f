"""What this node does, second by second: one sampler for all programs of a user that ask."""
