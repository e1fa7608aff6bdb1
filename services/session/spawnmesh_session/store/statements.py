"""Every statement of the service, read once."""

from spawnmesh_postgres.statements import load_statements

SQL = load_statements("spawnmesh_session")
