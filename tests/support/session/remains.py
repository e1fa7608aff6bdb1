"""Counts of the rows and objects of a tenant, read past the services."""

import asyncio

import psycopg
from minio import Minio
from psycopg.rows import dict_row
from spawnmesh_devstack.s3 import S3Endpoint

# Of a deleted tenant: its report, and its id where nothing may be written before it is created
# anew.
REPORT = {"session.tenant_deletions": 1, "hook.purged_tenants": 1, "model_router.purged_tenants": 1}
NOTHING = {"runs": 0, "queue": 0, "transcripts": 0, "entries": 0, "files": 0, "objects": 0}

_COUNTS = {
    "runs": "session.runs where true",
    "queue": "session.dispatch where true",
    "transcripts": "transcript.transcripts where state = 'LIVE'",
    "entries": "transcript.entries where true",
    "files": "attachment_blob.set_files where true",
}
_TABLES = """
    select table_schema || '.' || table_name from information_schema.columns
    where column_name = 'tenant_id' and table_schema in ('session', 'attachment_blob', 'transcript',
        'hook', 'model_router')"""
_JOBS = "select 'jobs', count(*) from session.procrastinate_jobs where args ->> 'tenant_id' = %(tenant)s"


class Remains:
    """Counts as a superuser, and as the bucket's owner."""

    def __init__(self, superuser_dsn: str, s3: S3Endpoint) -> None:
        self.dsn = superuser_dsn.replace("/postgres?", "/spawnmesh?")
        self._minio = Minio(s3.endpoint, s3.access_key, s3.secret_key, secure=False, region=s3.region)

    async def of(self, tenant: str) -> dict[str, int]:
        """Count the rows of the tenant except those of its sessions."""
        counts = [
            f"(select count(*) from {table} and tenant_id = %(tenant)s) as {name}"
            for name, table in _COUNTS.items()
        ]
        async with await psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row) as connection:
            row = await (
                await connection.execute(f"select {', '.join(counts)}", {"tenant": tenant})
            ).fetchone()
        assert row is not None
        return {**row, "objects": len(await asyncio.to_thread(self._objects, tenant))}

    async def count(self, tenant: str, table: str) -> int:
        """Rows of `schema.table where condition`."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            query = f"select count(*) from {table} and tenant_id = %s"
            row = await (await connection.execute(query, (tenant,))).fetchone()
        assert row is not None
        return int(row[0])

    async def everywhere(self, tenant: str) -> dict[str, int]:
        """Rows in every table of every service that has any, and whether there is a bucket."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            tables = await (await connection.execute(_TABLES)).fetchall()
            counts = [
                _JOBS,
                *(
                    f"select '{name}', count(*) from {name} where tenant_id = %(tenant)s"
                    for (name,) in tables
                ),
            ]
            rows = await (await connection.execute(" union all ".join(counts), {"tenant": tenant})).fetchall()
        bucket = await asyncio.to_thread(self._minio.bucket_exists, f"spawnmesh-{tenant}")
        return {name: count for name, count in [*rows, ("buckets", int(bucket))] if count}

    def _objects(self, tenant: str) -> list[object]:
        return list(self._minio.list_objects(f"spawnmesh-{tenant}", recursive=True))
