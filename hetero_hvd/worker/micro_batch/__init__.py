"""A worker's part of a step, cut into pieces that its memory holds."""
