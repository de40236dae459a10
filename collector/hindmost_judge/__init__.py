"""The judge: arrays in, findings out. numpy only, no I/O, and no collector."""
