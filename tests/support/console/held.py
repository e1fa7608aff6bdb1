"""Work of a tenant that waits for a lock of the test, and goes on when the test says so."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg

from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually

_TRANSCRIPTS = "select from transcript.transcripts where tenant_id = %s for update"
_SETTINGS = "select from transcript.tenants where tenant_id = %s for update"
# The job of an operation that is done has no failed attempt: it deletes the operation in a week.
_DUE = (
    "update transcript.jobs set due_time = now()"
    " where tenant_id = %s and claim_id is null and kind = 'operation' and attempt_count > 0",
    "update session.jobs set due_time = now() where tenant_id = %s and claim_id is null"
    " and kind = 'operation' and due_time < now() + interval '1 day'",
)


@asynccontextmanager
async def held_transcripts(tenant: ConsoleTenant) -> AsyncIterator[None]:
    """Lock the transcripts of the tenant: a recount of them is not done during the block."""
    async with _locked(tenant, _TRANSCRIPTS):
        yield


@asynccontextmanager
async def held_settings(tenant: ConsoleTenant) -> AsyncIterator[None]:
    """Lock the settings of the tenant in transcript: neither a change nor a deletion of the tenant
    reaches this service during the block.
    """
    async with _locked(tenant, _SETTINGS):
        yield


async def hurried(tenant: ConsoleTenant, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the condition. Work of the tenant that is to be tried again later is tried now."""
    dsn = tenant.console.stack.superuser_dsn
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as database:

        async def holds() -> bool:
            for due in _DUE:
                await database.execute(due, (tenant.tenant_id,))
            return await condition()

        await eventually(holds, within_seconds=120)


async def operations_done(tenant: ConsoleTenant) -> None:
    """Wait until all operations of the tenant are done."""

    async def are_done() -> bool:
        return not [one async for one in tenant.mesh.operations.list(done=False)]

    await hurried(tenant, are_done)


@asynccontextmanager
async def _locked(tenant: ConsoleTenant, statement: str) -> AsyncIterator[None]:
    async with await psycopg.AsyncConnection.connect(tenant.console.stack.superuser_dsn) as holder:
        await holder.execute(statement, (tenant.tenant_id,))
        yield
        await holder.rollback()
