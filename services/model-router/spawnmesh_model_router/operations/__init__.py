"""Steps that RPCs and jobs share, with the caches, batches and the bulkhead before the stores."""
