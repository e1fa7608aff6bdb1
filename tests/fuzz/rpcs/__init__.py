"""Random messages for every RPC of a running mesh."""
