"""The node daemon: reads rings, samples the node, spools and ships."""
