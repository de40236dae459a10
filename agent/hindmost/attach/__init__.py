"""Look into training processes that are already running, without restarting them."""
