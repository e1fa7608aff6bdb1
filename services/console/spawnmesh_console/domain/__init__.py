"""Pure rules of what is shown."""
