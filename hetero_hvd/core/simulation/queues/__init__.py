"""A queue that exists as numbers: a trace of jobs under published policies and ours."""
