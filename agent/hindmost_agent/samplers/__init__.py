"""Sources of node metrics, one self-registering file each."""
