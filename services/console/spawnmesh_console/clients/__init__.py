"""The services that the console calls."""
