"""This process in its job: what it was told at its start, its channel to the driver, its end."""
