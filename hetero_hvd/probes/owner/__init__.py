"""Whether the owner of a machine uses it, where jobs are its guests."""
