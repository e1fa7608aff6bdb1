"""Steps that RPCs and jobs share, or that are longer than a screen, such as the sagas."""
