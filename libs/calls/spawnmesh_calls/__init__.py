"""Calls to the mesh over gRPC: channels, retries, silent replicas, typed errors."""
