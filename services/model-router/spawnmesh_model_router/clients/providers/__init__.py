"""Calls to providers: between the messages of the mesh and each provider's wire format."""
