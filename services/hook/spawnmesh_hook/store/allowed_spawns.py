"""Spawns that plugins allowed."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import HookKind

_SQL = load_statements(__name__)


async def insert_allowed_spawn(connection: Connection, tenant_id: str, session_id: str) -> None:
    """Remember that the plugins allowed the spawn of this session."""
    await connection.execute(_SQL["insert_allowed_spawn"], {"tenant_id": tenant_id, "session_id": session_id})


async def is_allowed(connection: Connection, tenant_id: str, session_id: str) -> bool:
    """Return whether plugins allowed the spawn of this session."""
    parameters = {"tenant_id": tenant_id, "session_id": session_id}
    return await (await connection.execute(_SQL["is_allowed"], parameters)).fetchone() is not None


async def has_allow(connection: Connection, tenant_id: str, session_id: str) -> bool:
    """Return whether plugins allowed the spawn of this session, or one of them did by the delivery
    log.

    Each answer is in the log before the dispatch uses it. A replica that dies then stores nothing
    else. This permits no spawn: another plugin may have denied it, or failed although it is CLOSED.
    """
    parameters = {"tenant_id": tenant_id, "session_id": session_id, "hook": HookKind.BEFORE_SPAWN.value}
    return await (await connection.execute(_SQL["has_allow"], parameters)).fetchone() is not None
