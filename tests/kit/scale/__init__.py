"""Many workers that are none, for a real driver: they say what workers say and compute nothing."""
