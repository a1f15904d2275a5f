"""Steps that take from each worker what the plan gives it, and wait for all of them."""
