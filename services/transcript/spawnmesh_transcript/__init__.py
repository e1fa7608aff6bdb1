"""The transcript service: append-only entries behind a one-writer fence, contexts and summaries."""
