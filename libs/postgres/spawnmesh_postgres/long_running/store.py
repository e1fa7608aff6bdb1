"""The table of operations. Each function does its work in the scope of one tenant."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message
from psycopg.rows import class_row
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import store as job_store
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.long_running.operation import (
    MAX_FINISHED,
    MAX_OPEN,
    NewOperation,
    Progress,
    StoredOperation,
)
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

CHANNEL = "operations"
"""The notification channel that wakes the calls that wait for an operation, by its id."""
JOB_KIND = "operation"
"""The kind of the jobs that execute operations. The key of a job is the id of its operation."""
NEWEST = "opr_~"
"""It is higher than every id of an operation."""

_RETRY_SECONDS = 10.0


async def find_started(database: Database, tenant_id: str, new: NewOperation) -> StoredOperation | None:
    """Return the operation that the same call has started; None if there is none.

    Raises REQUEST_ID_REUSED if the request_id belongs to another request.
    """
    values = {"method": new.type.method, "request_id": new.request_id}
    rows = await database.call(tenant_id, _SQL["find_operation_of_request"], values)
    return _same(StoredOperation(**rows[0]), new) if rows else None


async def start(database: Database, tenant_id: str, new: NewOperation) -> StoredOperation:
    """Store an operation and enqueue its job, or return the one that the same call has started.

    Raises REQUEST_ID_REUSED if the request_id belongs to another request,
    OPERATION_COUNT_EXCEEDED, and UNKNOWN_TENANT for a tenant that is purged.
    """
    async with database.adding(tenant_id) as connection:
        return await start_within(connection, tenant_id, new, _begin_at_the_start)


async def start_within(
    connection: Connection, tenant_id: str, new: NewOperation, begin: Callable[[Connection], Awaitable[str]]
) -> StoredOperation:
    """Do what `start` does within a transaction of the caller.

    Await `begin` before the operation is stored, if it is a new one: it writes what must be durable
    with the operation, and returns the position of the first step. Raises what `begin` raises,
    REQUEST_ID_REUSED and OPERATION_COUNT_EXCEEDED.
    """
    values = {
        "tenant_id": tenant_id,
        "operation_id": new_id(IdKind.OPERATION),
        "method": new.type.method,
        "request_id": new.request_id,
        "request": _bytes(new.request),
        "subject": new.subject,
    }
    await connection.execute(_SQL["lock_operations"], values)
    if (found := await _one(connection, "find_operation_of_request", values)) is not None:
        return _same(found, new)
    await _require_place(connection, tenant_id)
    position = await begin(connection)
    operation = await _one(connection, "insert_operation", {**values, "position": position})
    assert operation is not None
    job = NewJob(JOB_KIND, operation.operation_id, traceparent=new.traceparent)
    await job_store.enqueue(connection, tenant_id, job)
    kept = {"tenant_id": tenant_id, "kept_count": MAX_FINISHED}
    await connection.execute(_SQL["delete_old_operations"], kept)
    return operation


async def _begin_at_the_start(_connection: Connection) -> str:
    return ""


async def _require_place(connection: Connection, tenant_id: str) -> None:
    values = {"tenant_id": tenant_id, "limit": MAX_OPEN}
    row = await (await connection.execute(_SQL["count_open_operations"], values)).fetchone()
    if row is not None and row["count"] >= MAX_OPEN:
        raise MeshError(
            Reason.OPERATION_COUNT_EXCEEDED,
            f"the tenant has {MAX_OPEN} operations that are not done; wait for one, or cancel it",
            retry_after_seconds=_RETRY_SECONDS,
            facts={"max_operation_count": MAX_OPEN},
        )


async def find(database: Database, tenant_id: str, operation_id: str) -> StoredOperation | None:
    """Return the operation, or None if there is none."""
    rows = await database.call(tenant_id, _SQL["find_operation"], {"operation_id": operation_id})
    return StoredOperation(**rows[0]) if rows else None


async def list_operations(
    database: Database,
    tenant_id: str,
    *,
    methods: Sequence[str],
    before_id: str,
    is_done: bool | None,
    limit: int,
) -> list[StoredOperation]:
    """Return a page of the tenant's operations that these RPCs started, newest first."""
    values = {"methods": list(methods), "before_id": before_id, "is_done": is_done, "limit": limit}
    rows = await database.call(tenant_id, _SQL["list_operations"], values)
    return [StoredOperation(**row) for row in rows]


async def advance(
    database: Database, tenant_id: str, operation: StoredOperation, progress: Progress
) -> StoredOperation | None:
    """Record a step. Return None if another worker has recorded one, or if the operation ended."""
    values = {
        **_step(tenant_id, operation),
        "response": _bytes(progress.response),
        "position": progress.position,
        "done_count": progress.done_count,
        "total_count": progress.total_count,
        "ends_in": timedelta() if progress.is_done else None,
    }
    advance_statement = (_SQL["advance_operation"], values)
    if progress.is_done:
        rows, _ = await database.transact(tenant_id, advance_statement, (_SQL["notify_waiters"], values))
    else:
        (rows,) = await database.transact(tenant_id, advance_statement)
    return StoredOperation(**rows[0]) if rows else None


async def fail(database: Database, tenant_id: str, operation: StoredOperation, error: Message) -> None:
    """End the operation with an error, unless a step was recorded meanwhile."""
    values = {**_step(tenant_id, operation), "error": _bytes(error)}
    await database.transact(
        tenant_id, (_SQL["fail_operation"], values), (_SQL["notify_waiters"], _key(tenant_id, operation))
    )


async def note_retry(database: Database, tenant_id: str, operation: StoredOperation, reason: str) -> None:
    """Record why the newest step failed; it is tried again."""
    values = {**_step(tenant_id, operation), "retry_reason": reason}
    await database.transact(tenant_id, (_SQL["note_retry"], values))


async def request_cancellation(database: Database, tenant_id: str, operation_id: str) -> None:
    """Let an open operation end before its next step. A worker looks at it at once."""
    values = {"tenant_id": tenant_id, "operation_id": operation_id}
    async with database.transaction(tenant_id) as connection:
        if (await connection.execute(_SQL["cancel_operation"], values)).rowcount:
            await job_store.retry_now(connection, (tenant_id, JOB_KIND, operation_id))


async def delete(database: Database, tenant_id: str, operation_id: str) -> bool:
    """Delete an operation that has ended, and its job. Return False if it has not ended."""
    values = {"tenant_id": tenant_id, "operation_id": operation_id}
    async with database.transaction(tenant_id) as connection:
        if not (await connection.execute(_SQL["delete_operation"], values)).rowcount:
            return False
        await job_store.delete(connection, tenant_id, JOB_KIND, operation_id)
        await connection.execute(_SQL["notify_waiters"], values)
        return True


async def _one(connection: Connection, statement: str, values: dict[str, Any]) -> StoredOperation | None:
    async with connection.cursor(row_factory=class_row(StoredOperation)) as cursor:
        await cursor.execute(_SQL[statement], values)
        return await cursor.fetchone()


def _key(tenant_id: str, operation: StoredOperation) -> dict[str, Any]:
    return {"tenant_id": tenant_id, "operation_id": operation.operation_id}


def _step(tenant_id: str, operation: StoredOperation) -> dict[str, Any]:
    return {**_key(tenant_id, operation), "step_count": operation.step_count}


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _same(known: StoredOperation, new: NewOperation) -> StoredOperation:
    """Return the known operation. Raises REQUEST_ID_REUSED if another request started it."""
    if known.request != _bytes(new.request):
        raise MeshError(
            Reason.REQUEST_ID_REUSED,
            "another request was sent with this request_id; choose a new one",
            facts={"request_id": new.request_id},
        )
    return known
