"""Files with which Prometheus, Alertmanager and Grafana watch runs."""
