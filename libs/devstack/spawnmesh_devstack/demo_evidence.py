"""The evidence of the demo: the trace, the attempts at models, and that nothing is left."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import psutil
import psycopg
from minio import Minio
from psycopg import sql
from spawnmesh_core.spans import Span

from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.stack import Stack

DEPLOYABLES = ("attachment-blob", "hook", "model-router", "runner", "session", "transcript")

_POLL_SECONDS = 0.2
_SETTLE_SECONDS = 30.0
_BUCKET_PREFIX = "spawnmesh-"
# The tables that must be empty for a tenant once all its sessions have ended. The ids of model
# calls that were reported are remembered for a minute, each with a job.
_NOTHING_IN = {
    "attachment_blob.set_files": "tenant_id = %(tenant)s",
    "attachment_blob.blobs": "tenant_id = %(tenant)s",
    "attachment_blob.sets": "tenant_id = %(tenant)s and state <> 'RELEASED'",
    "session.run_queue": "tenant_id = %(tenant)s",
    "session.jobs": "tenant_id = %(tenant)s and kind <> 'expire_model_call'",
    "session.inbox_messages": "tenant_id = %(tenant)s and acknowledge_time is null",
    "session.runs": "tenant_id = %(tenant)s and end_time is null",
    "session.output_sets": "tenant_id = %(tenant)s",
    "session.model_calls": "tenant_id = %(tenant)s and not is_reported",
}
# Those of them that are about files.
_FILES_IN = {
    "attachment_blob.set_files",
    "attachment_blob.blobs",
    "attachment_blob.sets",
    "session.output_sets",
}


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The leftovers: S3 objects, rows by table, workspaces, and processes by name."""

    objects: Sequence[str]
    rows: Mapping[str, int]
    workspaces: Sequence[str]
    processes: Sequence[str] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of each; the demo expects zeros."""
        return {
            "objects": len(self.objects),
            "rows": sum(self.rows.values()),
            "workspaces": len(self.workspaces),
            "processes": len(self.processes),
        }

    def has_only_files(self, count: int) -> bool:
        """Return whether nothing is left but `count` files and their rows."""
        others = sum(rows for table, rows in self.rows.items() if not count or table not in _FILES_IN)
        return len(self.objects) == count and not others and not self.workspaces and not self.processes

    def with_processes(self, pids: Mapping[str, int]) -> "Leftovers":
        """Return the same with those of the given processes that still run."""
        return replace(self, processes=[name for name, pid in pids.items() if psutil.pid_exists(pid)])


async def leftovers(stack: Stack, tenant_id: str, *, kept_files: int = 0) -> Leftovers:
    """Return what is left of the tenant's sessions once the follow-up jobs are done, or after the
    time-out. `kept_files` different files are expected to stay.
    """
    give_up = time.monotonic() + _SETTLE_SECONDS
    while True:
        left = Leftovers(
            objects=await asyncio.to_thread(_objects, stack.s3.endpoint, tenant_id),
            rows=await _rows(stack.superuser_dsn, tenant_id),
            workspaces=sorted(path.name for path in stack.workspace_root.iterdir()),
        )
        if left.has_only_files(kept_files) or time.monotonic() > give_up:
            return left
        await asyncio.sleep(_POLL_SECONDS)


def attempts(spans: Sequence[Span]) -> list[dict[str, object]]:
    """Return every attempt at a model, in order: session, model, milliseconds, and the reason of
    the failure, empty on success.
    """
    return [
        {
            "session_id": span.attributes.get("gen_ai.conversation.id", ""),
            "model": f"{span.attributes['gen_ai.provider.name']}/{span.attributes['gen_ai.request.model']}",
            "reason": span.attributes.get("spawnmesh.failover.reason", ""),
            "http_status": span.attributes.get("http.response.status_code", 0),
            "input_tokens": span.attributes.get("gen_ai.usage.input_tokens", 0),
            "milliseconds": round(span.duration_ms, 1),
        }
        for span in spans
        if span.attributes.get("gen_ai.operation.name") == "chat"
    ]


def _objects(s3: S3Endpoint, tenant_id: str) -> list[str]:
    client = Minio(
        s3.endpoint, access_key=s3.access_key, secret_key=s3.secret_key, secure=False, region=s3.region
    )
    found = client.list_objects(f"{_BUCKET_PREFIX}{tenant_id}", recursive=True)
    return [str(item.object_name) for item in found]


async def _rows(dsn: str, tenant_id: str) -> dict[str, int]:
    counts = {}
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for table, condition in _NOTHING_IN.items():
            statement = sql.SQL("select count(*) from {} where ").format(sql.Identifier(*table.split(".")))
            found = await connection.execute(statement + sql.SQL(condition), {"tenant": tenant_id})
            row = await found.fetchone()
            counts[table] = int(row[0]) if row else 0
    return {table: count for table, count in counts.items() if count}
