"""All statements of the session service, and of the job library, by name; each name is unique."""

import pkgutil

from spawnmesh_postgres.statements import load_statements
from spawnmesh_session import store


def _load_all() -> dict[str, str]:
    statements = load_statements("spawnmesh_postgres.jobs.store")
    for module in pkgutil.iter_modules(store.__path__, f"{store.__name__}."):
        try:
            own = load_statements(module.name)
        except FileNotFoundError:
            continue  # A module without statements.
        assert statements.keys().isdisjoint(own), module.name
        statements |= own
    return statements


SQL = _load_all()
