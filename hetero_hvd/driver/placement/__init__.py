"""Which nodes train: some are set aside, some are tried, and settings are measured."""
