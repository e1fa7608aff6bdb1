"""Providers: their wire formats, through their own SDKs, on one side; messages of the mesh on the other."""
