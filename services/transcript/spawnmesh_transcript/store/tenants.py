"""Tenants, and the tables with their rows.

Each function runs in the caller's transaction, except `list_tenants`.
"""

from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import GET_PURGE, JOIN_WRITERS, join_writers
from spawnmesh_postgres.tenant_tables import TenantTables

from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary

_SQL = load_statements(__name__)
FIND_POLICY = _SQL["find_policy"]

# Jobs first, so that nothing more is published, and no operation goes on. Rows and jobs may be
# written for a transcript while its row exists, and activities while their head does.
TENANT_TABLES = TenantTables(
    rows=(
        "jobs",
        "operations",
        "entries",
        "appends",
        "draft_pieces",
        "search_progress",
        "search_pieces",
        "stubs",
        "summaries",
        "payloads",
        "imports",
        "transcripts",
        "activities",
        "activity_heads",
    ),
    settings="tenants",
    work="tenant_work",
)


def join_writers_statement(tenant_id: str) -> Statement:
    """Return the statement that keeps a purge from beginning until the transaction ends."""
    return JOIN_WRITERS, {"tenant_id": tenant_id}


async def enter_tenant(connection: Connection, tenant_id: str) -> bool:
    """Keep a purge from beginning until the transaction ends. Returns False if one has begun."""
    async with connection.pipeline():
        await join_writers(connection, tenant_id)
        purge = await connection.execute(GET_PURGE, {"tenant_id": tenant_id})
    return purge.rowcount == 0


async def put_tenant(connection: Connection, tenant_id: str, policy: TranscriptPolicy) -> None:
    """Store the policy, unless the stored one has this version or a newer one."""
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


async def read_policy(connection: Connection, tenant_id: str) -> TranscriptPolicy:
    """Return the policy in force, or the default one."""
    return await find_policy(connection, tenant_id) or TranscriptPolicy()


async def find_policy(connection: Connection, tenant_id: str) -> TranscriptPolicy | None:
    """Return the policy in force; None if the tenant was not prepared."""
    row = await (await connection.execute(FIND_POLICY, {"tenant_id": tenant_id})).fetchone()
    return None if row is None else policy_of(row)


def policy_of(row: Row) -> TranscriptPolicy:
    """Return the policy from a row of FIND_POLICY."""
    return TranscriptPolicy(**{**row, "token_vocabulary": Vocabulary(row["token_vocabulary"])})


async def list_tenants(database: Database, *, after_tenant_id: str, row_count: int) -> list[str]:
    """Return tenants that are not being purged, by id."""
    async with database.transaction(ALL_TENANTS) as connection:
        parameters = {"after_tenant_id": after_tenant_id, "row_count": row_count}
        cursor = await connection.execute(_SQL["list_tenants"], parameters)
        return [row["tenant_id"] for row in await cursor.fetchall()]


async def claim_tenant(connection: Connection, tenant_id: str, *, interval_seconds: float) -> bool:
    """Claim the tenant for a round of work.

    Returns False if another worker claimed it within the interval.
    """
    parameters = {"tenant_id": tenant_id, "interval_seconds": interval_seconds}
    return (await connection.execute(_SQL["claim_tenant"], parameters)).rowcount == 1


async def sum_sizes(connection: Connection, tenant_id: str) -> tuple[int, int]:
    """Return the bytes of the tenant's bodies for readers, and as they are stored."""
    row = await (await connection.execute(_SQL["sum_sizes"], {"tenant_id": tenant_id})).fetchone()
    return (row["logical_bytes"], row["stored_bytes"]) if row else (0, 0)
