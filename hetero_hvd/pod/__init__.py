"""Inside a pod of Kubernetes: what is wrong with it."""
