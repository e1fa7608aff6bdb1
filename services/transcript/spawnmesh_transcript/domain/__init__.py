"""The rules of a transcript: what is redacted, how results find their calls, what fits a budget. No I/O."""
