"""How the supervisor of a worker is run on its node: a module for each value of `launcher`."""
