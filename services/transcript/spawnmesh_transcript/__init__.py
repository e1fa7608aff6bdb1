"""The transcript service: append-only entries behind a fence for one writer, contexts and summaries."""
