"""Steps over several stores and clients that RPCs share."""
