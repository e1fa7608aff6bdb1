"""Heartbeats of the workers of a service.

Each worker writes one into the schema every ten seconds.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import raise_if_cancelled

from spawnmesh_postgres.database import ALL_TENANTS, Database

_INTERVAL_SECONDS = 10.0
_DELETE_SECONDS = 2.0
# `migrate` creates `_spawnmesh_worker`. Rows older than a day belong to processes that crashed.
_UPSERT = """
insert into _spawnmesh_worker (name, process_id) values (%(name)s, %(process_id)s)
on conflict (name, process_id) do update set seen_time = clock_timestamp()
"""
_DELETE_OLD = "delete from _spawnmesh_worker where seen_time < clock_timestamp() - interval '1 day'"
_DELETE = "delete from _spawnmesh_worker where name = %(name)s and process_id = %(process_id)s"
# Two of three heartbeats may be late.
_READ = """
select name, max(seen_time) as last_seen_time,
       count(*) filter (where seen_time > clock_timestamp() - interval '30 seconds') as process_count
  from _spawnmesh_worker group by name
"""

_DATABASE_ERRORS = (psycopg.Error, PoolTimeout)


@dataclass(frozen=True, slots=True)
class WorkerPresence:
    """A worker and its processes.

    `process_count` processes sent a heartbeat in the last 30 seconds. `last_seen_time` is None if
    no heartbeat is recorded.
    """

    name: str
    process_count: int
    last_seen_time: datetime | None


async def send_heartbeats(
    database: Database, name: str, *, interval_seconds: float = _INTERVAL_SECONDS
) -> None:
    """Send heartbeats until cancelled, and delete the last one then.

    Run it in the task group of the work that it reports. A failure of the database is logged and
    does not end the work.
    """
    parameters = {"name": name, "process_id": uuid4().hex}
    try:
        while True:
            try:
                async with database.transaction(ALL_TENANTS) as connection:
                    await connection.execute(_UPSERT, parameters)
                    await connection.execute(_DELETE_OLD)
            except _DATABASE_ERRORS as error:
                raise_if_cancelled()
                structlog.get_logger().warning("heartbeat_failed", worker=name, error=type(error).__name__)
            await asyncio.sleep(interval_seconds)
    finally:
        with suppress(*_DATABASE_ERRORS, TimeoutError):
            async with asyncio.timeout(_DELETE_SECONDS), database.transaction(ALL_TENANTS) as connection:
                await connection.execute(_DELETE, parameters)


async def list_workers(database: Database, names: Iterable[str]) -> list[WorkerPresence]:
    """Return the presence of each of these workers by name, also of workers that never ran."""
    async with database.transaction(ALL_TENANTS) as connection:
        rows = await (await connection.execute(_READ)).fetchall()
    seen = {
        row["name"]: WorkerPresence(row["name"], row["process_count"], row["last_seen_time"]) for row in rows
    }
    return [seen.get(name, WorkerPresence(name, 0, None)) for name in sorted(names)]
