"""Which nodes there are: those of nodes.yaml and those that announce themselves."""
