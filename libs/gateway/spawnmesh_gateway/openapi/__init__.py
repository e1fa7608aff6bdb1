"""The OpenAPI document of the mesh, from the contracts."""
