"""The failover chain: call candidates in order until one answers."""
