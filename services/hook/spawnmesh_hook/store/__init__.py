"""Tables of the hook service and the file of bundled plugins."""
