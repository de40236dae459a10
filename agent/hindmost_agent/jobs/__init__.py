"""Which ranks are on this node, what their rings say, and how they end."""
