"""Commands that watch the machines of a cluster, whatever runs on them."""
