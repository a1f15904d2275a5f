"""Files with which Prometheus and Grafana watch runs."""
