"""The sandbox of programs that an operator lets runs start."""
