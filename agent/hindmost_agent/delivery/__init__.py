"""From rows to acknowledged batches: batch, spool, ledger, stream to the collector."""
