"""The rules of the model router: pure functions on frozen values."""
