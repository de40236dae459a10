"""One file a framework: how its steps and phases are seen."""
