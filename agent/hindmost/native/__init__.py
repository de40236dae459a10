"""The C side: the ring's layout, the PMPI shim, the NCCL plugin and the ring's fast writer, built at first use."""
