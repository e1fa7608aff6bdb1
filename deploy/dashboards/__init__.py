"""The dashboards of the chart. `make dashboards` writes their JSON, which Grafana reads."""
