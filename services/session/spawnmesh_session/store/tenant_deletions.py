"""Deletions of tenants: their progress, and the removal of this service's rows."""

from collections import Counter
from datetime import timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_participant import PAGE_ROWS
from spawnmesh_postgres.tenant_tables import TenantTables

from spawnmesh_session.domain.tenants import DeletionStep, TenantDeletion
from spawnmesh_session.store.tenants import deletion_of

_SQL = load_statements(__name__)

# Rows of sessions go before them. The tenant's own row goes last, and its deletion remains, as do
# the operations and their jobs. `purge_jobs` removes the other jobs.
TENANT_TABLES = TenantTables(
    rows=(
        "schedules",
        "schedule_firings",
        "model_calls",
        "budgets",
        "output_sets",
        "approvals",
        "inbox_messages",
        "session_events",
        "runs",
        "sessions",
        "agents",
        "run_queue",
    ),
    settings="tenants",
)


async def insert_tenant_deletion(connection: Connection, tenant_id: str) -> bool:
    """Begin the deletion after every transaction that has entered the tenant has ended.

    Return False if it has begun before.
    """
    values = {"tenant_id": tenant_id}
    await connection.execute(_SQL["bar_tenant"], values)
    row = await (await connection.execute(_SQL["insert_tenant_deletion"], values)).fetchone()
    return row is not None


async def get_tenant_deletion(connection: Connection, tenant_id: str) -> TenantDeletion | None:
    """Return the deletion, if there is one."""
    row = await (await connection.execute(_SQL["get_tenant_deletion"], {"tenant_id": tenant_id})).fetchone()
    return deletion_of(tenant_id, row) if row else None


async def lock_tenant_deletion(connection: Connection, deletion: TenantDeletion) -> bool:
    """Lock the deletion at its step until the transaction ends.

    Return False if another pass has advanced, or the tenant was created again.
    """
    values = {
        "tenant_id": deletion.tenant_id,
        "request_time": deletion.request_time,
        "step": deletion.step.value,
    }
    row = await (await connection.execute(_SQL["lock_tenant_deletion"], values)).fetchone()
    return row is not None


async def forget_tenant_deletion(connection: Connection, tenant_id: str) -> None:
    """Remove the report of a deletion that is DONE."""
    await connection.execute(_SQL["forget_tenant_deletion"], {"tenant_id": tenant_id})


async def report_progress(
    connection: Connection,
    deletion: TenantDeletion,
    *,
    killed_runs: int = 0,
    sessions: int = 0,
    transcripts: int = 0,
    objects: int = 0,
    settle_in: timedelta = timedelta(0),
) -> None:
    """Add to the counts, also after the deletion is DONE.

    Nothing is settled before `settle_in` is over.
    """
    values = {
        "tenant_id": deletion.tenant_id,
        "request_time": deletion.request_time,
        "killed_run_count": killed_runs,
        "deleted_session_count": sessions,
        "deleted_transcript_count": transcripts,
        "deleted_object_count": objects,
        "settle_in": settle_in,
    }
    await connection.execute(_SQL["report_progress"], values)


async def record_stall(connection: Connection, deletion: TenantDeletion, stalled_by: str) -> None:
    """Record what stopped a pass, unless the deletion is DONE."""
    values = {
        "tenant_id": deletion.tenant_id,
        "request_time": deletion.request_time,
        "stalled_by": stalled_by,
    }
    await connection.execute(_SQL["record_stall"], values)


async def set_step(connection: Connection, tenant_id: str, step: DeletionStep) -> None:
    """Advance the deletion, which the caller has locked, to a step."""
    await connection.execute(_SQL["set_step"], {"tenant_id": tenant_id, "step": step.value})


async def is_settled(connection: Connection, tenant_id: str) -> bool:
    """Return whether the time for work that was in progress when the deletion began is over."""
    row = await (await connection.execute(_SQL["is_settled"], {"tenant_id": tenant_id})).fetchone()
    return row is not None


async def has_peer_work(connection: Connection, tenant_id: str) -> bool:
    """Return whether a sweep, a spawn or a settings push may be calling other services."""
    row = await (await connection.execute(_SQL["has_peer_work"], {"tenant_id": tenant_id})).fetchone()
    return row is not None


async def purge_page(connection: Connection, tenant_id: str) -> Counter[str]:
    """Remove a page of the tenant's rows; return how many by table, nothing if none is left."""
    keys = await TENANT_TABLES.read_keys(connection)
    return await TENANT_TABLES.purge_page(connection, tenant_id, keys, PAGE_ROWS)


async def purge_jobs(connection: Connection, tenant_id: str) -> None:
    """Remove the tenant's jobs, except those of operations, which outlive the tenant."""
    await connection.execute(_SQL["purge_jobs"], {"tenant_id": tenant_id})
