"""The statements about tenants as functions. Each runs in the caller's transaction."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.policy import TenantPolicy

_SQL = load_statements("spawnmesh_transcript")

PURGED_TABLES = (
    "entries",
    "appends",
    "search_progress",
    "search_pieces",
    "stubs",
    "summaries",
    "payloads",
    "imports",
    "transcripts",
    "activities",
    "activity_heads",
)
"""In this order: while a transcript's row is there, something may yet be written for it."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Rows that were deleted, and how many of them were transcripts that somebody could read."""

    row_count: int
    transcript_count: int


async def enter_tenant(connection: Connection, tenant_id: str) -> bool:
    """Lets no purge of the tenant begin until the transaction ends; False where one has begun."""
    cursor = await connection.execute(_SQL["enter_tenant"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    return row is not None and bool(row["is_open"])


async def put_tenant(connection: Connection, tenant_id: str, policy: TenantPolicy) -> None:
    """Writes the policy, unless one of this version or a newer one is there."""
    await connection.execute(
        _SQL["put_tenant"],
        {
            "tenant_id": tenant_id,
            "settings_version": policy.settings_version,
            "mask_secrets": policy.mask_secrets,
            "stub_large_tool_payloads": policy.stub_large_tool_payloads,
            "large_payload_bytes": policy.large_payload_bytes,
            "compact_at_percent": policy.compact_at_percent,
            "token_vocabulary": policy.token_vocabulary,
        },
    )


async def read_policy(connection: Connection, tenant_id: str) -> TenantPolicy:
    """The policy that holds."""
    return await find_policy(connection, tenant_id) or TenantPolicy()


async def find_policy(connection: Connection, tenant_id: str) -> TenantPolicy | None:
    """The policy that holds; None for a tenant that was not made ready."""
    row = await (await connection.execute(_SQL["read_settings"], {"tenant_id": tenant_id})).fetchone()
    if row is None:
        return None
    return TenantPolicy(**{**row, "token_vocabulary": Vocabulary(row["token_vocabulary"])})


async def begin_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Marks the tenant, once nothing is beginning in it any more; False where it has newer settings than those of the one to purge."""
    await connection.execute(_SQL["begin_purge"], {"tenant_id": tenant_id})
    return await _gives_row(connection, "mark_purging", tenant_id, settings_version)


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Whether what the tenant has is to be purged still; that does not change until the transaction ends."""
    return await _gives_row(connection, "lock_purge", tenant_id, settings_version)


async def pass_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Ends a purge that is of a tenant before the one with these settings, which has nothing left to remove; False where there is none."""
    return await _gives_row(connection, "pass_purge", tenant_id, settings_version)


async def _gives_row(connection: Connection, statement: str, tenant_id: str, settings_version: int) -> bool:
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL[statement], parameters)).fetchone() is not None


async def purge_rows(connection: Connection, tenant_id: str, table: str, *, row_count: int) -> Gone:
    """Deletes up to so many rows of a table."""
    await connection.execute(_SQL["keep_to_indexes"])
    cursor = await connection.execute(_SQL[f"purge_{table}"], {"tenant_id": tenant_id, "row_count": row_count})
    if table != "transcripts":
        return Gone(cursor.rowcount, 0)
    rows = await cursor.fetchall()
    return Gone(len(rows), sum(row["was_live"] for row in rows))


async def end_purge(connection: Connection, tenant_id: str) -> None:
    """Forgets the tenant."""
    await connection.execute(_SQL["end_purge"], {"tenant_id": tenant_id})
