"""The recovery after a replica was interrupted, and the tables, read past the services."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError
from spawnmesh_session.app import Components, make_job_worker, make_sweeper
from spawnmesh_session.domain.job_kinds import CLEAN_UP_SPAWN, FOLLOW_UPS, UNDO_SPAWN
from spawnmesh_session.settings import SessionSettings

from tests.support.session.remains import Remains

Answer = Any
"""Of a call: what it gave, or the MeshError that it raised."""


async def answer_of(call: Any) -> Answer:
    """Awaits the call; its refusal is an answer."""
    try:
        return await call
    except MeshError as error:
        return error


@dataclass
class RecoveryChecks:
    """The worker, done once and now, and the tables.

    `link` is a superuser's; `tenants` are those of the test.
    """

    components: Components
    settings: SessionSettings
    remains: Remains
    link: AsyncConnection[DictRow]
    tenants: set[str] = field(default_factory=set)

    async def sweep(self, tenant: str) -> None:
        """Make the tenant's spawns due, and sweep spawns and runs."""
        worker = make_job_worker(self.components, self.settings)
        for kind in (UNDO_SPAWN, CLEAN_UP_SPAWN):
            await self.rows(
                "update session.jobs set due_time = now() where kind = %s and tenant_id = %s", kind, tenant
            )
            await worker.run_due(kind)
        sweep = make_sweeper(self.components, self.settings)
        while await sweep.end_lost_runs():
            pass

    async def work(self) -> None:
        """Run every due job that follows a start or an end."""
        await make_job_worker(self.components, self.settings).run_due(*FOLLOW_UPS)

    async def rows(self, query: str, *parameters: Any) -> list[DictRow]:
        """Query as a superuser, in the schema of the session service."""
        cursor = await self.link.execute(query.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def jobs(self, tenant: str, session_id: str) -> Counter[str]:
        """Count the jobs that follow the start or the end of the session by kind."""
        query = """
            select kind from session.jobs
            where tenant_id = %s and kind = any (%s) and coalesce(arguments ->> 'session_id', key) = %s"""
        rows = await self.rows(query, tenant, list(FOLLOW_UPS), session_id)
        return Counter(row["kind"] for row in rows)

    async def events(self, tenant: str, session_id: str) -> list[DictRow]:
        """The session's, in their order."""
        query = (
            "select * from session.session_events where tenant_id = %s and session_id = %s order by number"
        )
        return await self.rows(query, tenant, session_id)

    async def expire_lease(self, tenant: str, run_id: str) -> None:
        """The run's lease has run out."""
        query = "update session.run_queue set due_time = now() where tenant_id = %s and run_id = %s"
        await self.rows(query, tenant, run_id)

    async def forget(self) -> None:
        """Of the tenants nothing waits for anybody: no run, no job."""
        for tenant in self.tenants:
            await self.rows("delete from session.run_queue where tenant_id = %s", tenant)
            await self.rows("delete from session.jobs where tenant_id = %s", tenant)
        self.tenants.clear()
