"""Grafana dashboards as code: ``python -m dashboards`` writes the JSON files next to this one."""
