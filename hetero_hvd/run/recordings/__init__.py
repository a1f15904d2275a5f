"""A recording is a run without training: its folder, its frames, and what each device did."""
