"""Commands about nodes, settings and the cluster itself."""
