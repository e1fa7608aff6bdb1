"""The hooks that plugins may be registered for: of each tenant, and of all."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import AsyncCursor
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.enabled_hooks import EnabledHooks

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class PendingHooks:
    """Hooks that were read in a pipeline. Fetch them later, also after the block."""

    cursor: AsyncCursor[Row]

    async def fetch(self) -> EnabledHooks:
        """Return the hooks, all of them if the tenant or the shared hooks are not known."""
        row = await self.cursor.fetchone()
        if row is None or row["shared"] is None:
            return EnabledHooks(None)
        return EnabledHooks(frozenset((*row["hooks"], *row["shared"])))


async def send_enabled_hooks(connection: Connection, tenant_id: str) -> PendingHooks:
    """Send the read of the tenant's hooks; in a pipeline this takes no round trip."""
    return PendingHooks(await connection.execute(_SQL["get_enabled_hooks"], {"tenant_id": tenant_id}))


async def get_enabled_hooks(database: Database, tenant_id: str) -> EnabledHooks:
    """Return the tenant's hooks, in one round trip."""
    async with database.pipelined(tenant_id) as connection:
        pending = await send_enabled_hooks(connection, tenant_id)
    return await pending.fetch()


async def add_hooks(database: Database, tenant_id: str, hooks: Sequence[str]) -> bool:
    """Enable the hooks for the tenant. Return False if it does not exist."""
    values = {"tenant_id": tenant_id, "hooks": list(hooks)}
    async with database.pipelined(tenant_id) as connection:
        enabled = await connection.execute(_SQL["add_hooks"], values)
    return await enabled.fetchone() is not None


async def add_shared_hooks(database: Database, hooks: Sequence[str]) -> None:
    """Enable the hooks for all tenants, also for later ones."""
    async with database.pipelined(ALL_TENANTS) as connection:
        await connection.execute(_SQL["add_shared_hooks"], {"hooks": list(hooks)})
