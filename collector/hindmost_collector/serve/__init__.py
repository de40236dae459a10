"""What is served over HTTP: metrics, reports, health, the page."""
