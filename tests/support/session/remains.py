"""Counts of the rows and objects of a tenant, read past the services."""

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
from minio import Minio
from psycopg.rows import dict_row
from spawnmesh_devstack.s3 import S3Endpoint

# Of a deleted tenant: its report, and its id where nothing may be written before it is created
# anew.
REPORT = {
    "session.tenant_deletions": 1,
    "attachment_blob.purged_tenants": 1,
    "transcript.purged_tenants": 1,
    "hook.purged_tenants": 1,
    "model_router.purged_tenants": 1,
}
NOTHING = {"runs": 0, "queue": 0, "transcripts": 0, "entries": 0, "files": 0, "objects": 0}

_COUNTS = {
    "runs": "session.runs where true",
    "queue": """(
        select tenant_id from session.run_queue union all select tenant_id from session.jobs
        where kind in ('undo_spawn', 'clean_up_spawn', 'delete_session', 'push_settings')
    ) queue where true""",
    "transcripts": "transcript.transcripts where state = 'LIVE'",
    "entries": "transcript.entries where true",
    "files": "attachment_blob.set_files where true",
}
_TABLES = """
    select a.attrelid::regclass::text from pg_attribute a join pg_class c on c.oid = a.attrelid
    where a.attname = 'tenant_id' and c.relkind = 'r'
      and c.relname <> all (array['revoked_tokens', 'audit_chains', 'audit_events'])
      and c.relnamespace in ('session'::regnamespace, 'attachment_blob'::regnamespace,
        'transcript'::regnamespace, 'hook'::regnamespace, 'model_router'::regnamespace)"""
_ROWS = """
    select tenant_id, '{name}', count(*) from {name} where tenant_id = any (%(tenants)s){condition} group by 1"""
# The operations of a deletion outlive the tenant, and each has a job that deletes it after a week.
_CONDITIONS = {
    "session.operations": " and method <> 'DeleteTenant'",
    "session.jobs": " and kind <> 'operation'",
}


class Remains:
    """Counts as a superuser, and as the bucket's owner."""

    def __init__(self, dsn: str, link: psycopg.AsyncConnection[tuple[Any, ...]], s3: S3Endpoint) -> None:
        self.dsn = dsn
        self.link = link
        self._minio = Minio(s3.endpoint, s3.access_key, s3.secret_key, secure=False, region=s3.region)

    async def of(self, tenant: str) -> dict[str, int]:
        """Count the rows of the tenant except those of its sessions."""
        counts = [
            f"(select count(*) from {table} and tenant_id = %(tenant)s) as {name}"
            for name, table in _COUNTS.items()
        ]
        async with self.link.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(f"select {', '.join(counts)}".encode(), {"tenant": tenant})
            row = await cursor.fetchone()
        assert row is not None
        return {**row, "objects": len(await asyncio.to_thread(self._objects, tenant))}

    async def count(self, tenant: str, table: str) -> int:
        """Rows of `schema.table where condition`."""
        query = f"select count(*) from {table} and tenant_id = %s".encode()
        row = await (await self.link.execute(query, (tenant,))).fetchone()
        assert row is not None
        return int(row[0])

    async def everywhere(self, tenant: str) -> dict[str, int]:
        """Rows in every table of every service that has any, and whether there is a bucket.

        Revoked tokens are left out: they stay until they expire. So are audit events, which outlive
        the tenant.
        """
        return (await self.everywhere_of([tenant]))[tenant]

    async def everywhere_of(self, tenants: Sequence[str]) -> dict[str, dict[str, int]]:
        """Count as `everywhere` does, for several tenants."""
        found: dict[str, dict[str, int]] = {tenant: {} for tenant in tenants}
        tables = [name for (name,) in await (await self.link.execute(_TABLES)).fetchall()]
        counts = [_ROWS.format(name=name, condition=_CONDITIONS.get(name, "")) for name in tables]
        query = " union all ".join(counts).encode()
        async for tenant, name, count in await self.link.execute(query, {"tenants": list(tenants)}):
            found[tenant][name] = count
        for tenant in tenants:
            if await asyncio.to_thread(self._minio.bucket_exists, f"spawnmesh-{tenant}"):
                found[tenant]["buckets"] = 1
        return found

    def _objects(self, tenant: str) -> list[object]:
        return list(self._minio.list_objects(f"spawnmesh-{tenant}", recursive=True))
