"""Which workers of a service are there: each leaves a sign in the service's schema every ten seconds."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import heed_cancellation

from spawnmesh_postgres.database import EVERY_TENANT, Database

_EVERY_SECONDS = 10.0
_LEAVE_SECONDS = 2.0
# `_spawnmesh_worker` is made by `migrate`. What left no sign for a day is forgotten: a process that crashed cannot take its row away.
_BEAT = """
insert into _spawnmesh_worker (name, process_id) values (%(name)s, %(process_id)s)
on conflict (name, process_id) do update set seen_time = clock_timestamp()
"""
_FORGET = "delete from _spawnmesh_worker where seen_time < clock_timestamp() - interval '1 day'"
_LEAVE = "delete from _spawnmesh_worker where name = %(name)s and process_id = %(process_id)s"
# Of three signs two may be late.
_READ = """
select name, max(seen_time) as last_seen_time,
       count(*) filter (where seen_time > clock_timestamp() - interval '30 seconds') as process_count
  from _spawnmesh_worker group by name
"""

_AWAY = (psycopg.Error, PoolTimeout)


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """`process_count` copies were seen in the last half minute; `last_seen_time` is None where no copy left a sign that is still there."""

    name: str
    process_count: int
    last_seen_time: datetime | None


async def beat_for_ever(database: Database, name: str, *, every_seconds: float = _EVERY_SECONDS) -> None:
    """Leaves signs until cancelled, and takes the last one away then. Run it in the task group of the work that it vouches for.

    While the database is away it tries again: a sign that is late must not end the work.
    """
    parameters = {"name": name, "process_id": uuid4().hex}
    try:
        while True:
            try:
                async with database.transaction(EVERY_TENANT) as connection:
                    await connection.execute(_BEAT, parameters)
                    await connection.execute(_FORGET)
            except _AWAY as error:
                heed_cancellation()
                structlog.get_logger().warning("worker_unseen", worker=name, error=type(error).__name__)
            await asyncio.sleep(every_seconds)
    finally:
        with suppress(*_AWAY, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS), database.transaction(EVERY_TENANT) as connection:
                await connection.execute(_LEAVE, parameters)


async def workers_seen(database: Database, names: Iterable[str]) -> list[SeenWorker]:
    """Of each of these workers, by name; also of one that never was there."""
    async with database.transaction(EVERY_TENANT) as connection:
        rows = await (await connection.execute(_READ)).fetchall()
    seen = {row["name"]: SeenWorker(row["name"], row["process_count"], row["last_seen_time"]) for row in rows}
    return [seen.get(name, SeenWorker(name, 0, None)) for name in sorted(names)]
