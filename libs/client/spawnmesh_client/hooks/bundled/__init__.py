"""Plugins that come with the mesh: `spawnmesh hooks serve
spawnmesh_client.hooks.bundled.cel_policy --for-tenant …`.
"""
