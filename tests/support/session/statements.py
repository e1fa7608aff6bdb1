"""All statements of the session service, and of the job library, by name; each name is unique."""

import pkgutil
from typing import Any

from spawnmesh_postgres.statements import load_statements
from spawnmesh_session import store
from spawnmesh_session.domain.filters import parse_filter
from spawnmesh_session.domain.session_filters import filter_of
from spawnmesh_session.domain.sessions import SessionOrder
from spawnmesh_session.store import approvals
from spawnmesh_session.store.session_lists import ListSource, SessionQuery, list_statement, query_values


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
SQL |= {
    "list_approvals": approvals.list_statement(only_pending=False),
    "list_approvals pending": approvals.list_statement(only_pending=True),
}
SQL |= {
    f"{name} {source.name} {order.name}": list_statement(name, source, order)
    for name in ("list_sessions", "list_descendants")
    for source in ListSource
    for order in SessionOrder
}


def list_values(
    filter: str = "", order: SessionOrder = SessionOrder.NEWEST, family_root: str = ""
) -> dict[str, Any]:
    """Return the values of `list_sessions` and `list_descendants` for the first page of a filter."""
    wanted = filter_of(parse_filter(filter))
    return query_values(SessionQuery(wanted, order, None, family_root, True, False))


def page_values(filter: str = "") -> dict[str, Any]:
    """Return the values of a page of 50 sessions, without the two ids that lead to a family."""
    values = {**list_values(filter), "limit": 50, "scan_limit": 1000}
    return {name: value for name, value in values.items() if name not in ("family_root", "parent_session_id")}
