"""Clients of plugins: gRPC channels, webhooks, DNS, and the guard of endpoints."""
