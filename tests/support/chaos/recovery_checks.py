"""The recovery after a replica was interrupted, and the tables, read past the services."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError
from spawnmesh_session.app import Components, make_sweeper
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
        await self.rows(
            "update session.work_queue set due_time = now() where kind = 'SPAWN' and tenant_id = %s", tenant
        )
        sweep = make_sweeper(self.components, self.settings)
        for work in (sweep.undo_spawns, sweep.end_lost_runs):
            while await work():
                pass

    async def work(self) -> None:
        """Every job that waits."""
        await self.components.job_app.run_worker_async(
            wait=False,
            concurrency=4,
            install_signal_handlers=False,
            listen_notify=False,
            delete_jobs="successful",
        )

    async def rows(self, query: str, *parameters: Any) -> list[DictRow]:
        """Query as a superuser, in the schema of the session service."""
        cursor = await self.link.execute(query.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def jobs(self, tenant: str, session_id: str) -> Counter[str]:
        """Count the waiting jobs of the session by task."""
        query = """
            select task_name from session.procrastinate_jobs
            where args ->> 'tenant_id' = %s and args ->> 'session_id' = %s"""
        rows = await self.rows(query, tenant, session_id)
        return Counter(row["task_name"].removeprefix("session:") for row in rows)

    async def events(self, tenant: str, session_id: str) -> list[DictRow]:
        """The session's, in their order."""
        query = (
            "select * from session.session_events where tenant_id = %s and session_id = %s order by cursor"
        )
        return await self.rows(query, tenant, session_id)

    async def expire_lease(self, tenant: str, run_id: str) -> None:
        """The run's lease has run out."""
        query = (
            "update session.work_queue set due_time = now()"
            " where tenant_id = %s and kind = 'RUN' and subject_id = %s"
        )
        await self.rows(query, tenant, run_id)

    async def forget(self) -> None:
        """Of the tenants nothing waits for anybody: no run, no job."""
        for tenant in self.tenants:
            await self.rows("delete from session.work_queue where tenant_id = %s", tenant)
            await self.rows("delete from session.procrastinate_jobs where args ->> 'tenant_id' = %s", tenant)
        self.tenants.clear()
