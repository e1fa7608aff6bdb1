"""Rows and objects that are stored after a run of random faults, read past the services."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from minio import Minio
from minio.error import S3Error
from psycopg.rows import dict_row

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.field import Field
from tests.chaos.random_faults.history import Call

Row = dict[str, Any]

_TABLES = {
    "sessions": "select * from session.sessions where delete_time is null",
    "runs": "select * from session.runs",
    "messages": "select * from session.inbox_messages",
    "events": "select * from session.session_events order by tenant_id, session_id, number",
    "approvals": "select * from session.approvals",
    "output_sets": "select * from session.output_sets",
    "budgets": "select * from session.budgets",
    "model_calls": """
        select c.*, j.due_time, j.due_time < now() - interval '1 minute' as is_late
        from session.model_calls c
        left join session.jobs j
            on j.tenant_id = c.tenant_id and j.kind = 'expire_model_call' and j.key = c.call_id
        where not c.is_counted and not c.is_reported""",
    "queue": "select tenant_id, run_id, due_time from session.run_queue",
    "jobs": """
        select tenant_id, kind, key, attempt_count, dead_time, last_error from session.jobs
        where kind <> 'expire_model_call' or due_time < now() or dead_time is not null union all
        select tenant_id, kind, key, attempt_count, dead_time, last_error from transcript.jobs""",
    "transcripts": "select * from transcript.transcripts where state = 'LIVE'",
    "entries": "select * from transcript.entries order by tenant_id, session_id, seq",
    "appends": "select * from transcript.appends",
    "sets": "select * from attachment_blob.sets",
    "set_files": "select * from attachment_blob.set_files",
    "blobs": "select * from attachment_blob.blobs",
    "uploads": "select * from attachment_blob.uploads",
    "attachment_tenants": "select * from attachment_blob.attachment_tenants",
    "outbox": "select tenant_id, key, dead_time, due_time = 'infinity' as is_held, last_error from hook.jobs",
    "allowed_spawns": "select tenant_id, session_id from hook.allowed_spawns",
    "webhooks": "select tenant_id, create_time from hook.webhooks",
    "deliveries": "select tenant_id, plugin, hook, session_id, run_id, decision, error from hook.deliveries",
}
_COOLDOWNS = """
    select clock_timestamp() as sample_time, tenant_id, scope, target, until_time
    from model_router.cooldowns"""
_BUCKET_PREFIX = "spawnmesh-"


@dataclass
class Facts:
    """Rows by table, objects by tenant, and what was observed meanwhile."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    objects: dict[str, set[str]] = field(default_factory=dict)
    """The keys in each tenant's bucket."""
    calls: list[Call] = field(default_factory=list)
    received: list[Row] = field(default_factory=list)
    """Messages that the receiver of webhooks has accepted: tenant, id and the body's fields."""
    cooldowns: list[Row] = field(default_factory=list)
    """Samples of the stored cooldowns, in the order of time."""
    leaks: list[str] = field(default_factory=list)
    """Files outside of the bucket that have content which was handed over."""
    scanned_count: int = 0
    """The number of files that were searched for it."""
    workspaces: list[str] = field(default_factory=list)
    """Files that are left in the runners' workspaces."""
    span_count: int = 0
    orphans: list[str] = field(default_factory=list)
    """Spans whose parent is missing."""
    ended: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    watched_count: int = 0
    """The number of processes that were watched."""
    unsettled: list[str] = field(default_factory=list)
    """Names of the parts that had not come to rest in time."""
    faults: list[AppliedFault] = field(default_factory=list)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        return self.tables.get(table, [])

    def of(self, *operations: str) -> list[Call]:
        """Return the calls of some operations, in the order of their starts."""
        return sorted((call for call in self.calls if call.operation in operations), key=lambda c: c.start)


async def load_tables(dsn: str) -> dict[str, list[Row]]:
    """Read every table at one moment."""
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as connection:
        await connection.execute("set transaction isolation level repeatable read")
        return {
            name: await (await connection.execute(query.encode())).fetchall()
            for name, query in _TABLES.items()
        }


async def load_objects(field: Field, tenants: Sequence[str]) -> dict[str, set[str]]:
    """List each tenant's bucket."""
    s3 = field.stack.s3.endpoint
    store = Minio(s3.endpoint, s3.access_key, s3.secret_key, secure=False, region=s3.region)

    def keys(tenant: str) -> set[str]:
        try:
            return {
                str(found.object_name)
                for found in store.list_objects(_BUCKET_PREFIX + tenant, recursive=True)
                if not found.is_dir
            }
        except S3Error as error:
            if error.code == "NoSuchBucket":
                return set()
            raise

    return {tenant: await asyncio.to_thread(keys, tenant) for tenant in tenants}


async def sample_cooldowns(dsn: str, samples: list[Row], pause_seconds: float = 0.5) -> None:
    """Add the stored cooldowns to the samples again and again. It never returns."""
    while True:
        try:
            # Without a transaction: a connection stays open if its commit is cancelled.
            async with await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, row_factory=dict_row
            ) as connection:
                samples += await (await connection.execute(_COOLDOWNS)).fetchall()
        except psycopg.Error:
            pass  # The database is away.
        await asyncio.sleep(pause_seconds)


def files_at(paths: Sequence[Path]) -> list[Path]:
    """Return the files at and below the paths. Raises FileNotFoundError if a path does not exist."""
    for path in paths:
        path.stat()
    return [file for path in paths for file in (path, *sorted(path.rglob("*"))) if file.is_file()]


def find_leaks(files: Sequence[Path], needles: Sequence[bytes]) -> list[str]:
    """Return the files that have one of the needles."""
    return [str(file) for file in files if any(needle in file.read_bytes() for needle in needles)]
