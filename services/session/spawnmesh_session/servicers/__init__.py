"""One class for each gRPC service: parse, act, render."""
