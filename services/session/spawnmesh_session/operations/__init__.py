"""Steps over several stores and clients that RPCs and jobs share, and the sagas."""
