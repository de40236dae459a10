"""Grafana dashboards as code: ``python -m dashboards`` writes the JSON files beside this one."""
