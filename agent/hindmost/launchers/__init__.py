"""One file a launcher: how a command that starts ranks is given the probe."""
