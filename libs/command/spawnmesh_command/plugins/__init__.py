"""Plugins that come with the mesh: `spawnmesh hooks serve
spawnmesh_command.plugins.cel_policy --for-tenant …`.
"""
