"""The number of connections to PostgreSQL that the chart counts for each process, and the real one."""

import asyncio
from collections.abc import Collection

import psycopg
from spawnmesh_devstack.postgres import Postgres

SMALLEST = 2  # A pool of this size opens all of its connections at the beginning.
LISTENING = {
    "session": 1,
    "session-worker": 1,
    "attachment-blob": 1,
    "attachment-blob-worker": 1,
    "transcript": 1,
    "transcript-worker": 1,
    "model-router": 1,
    "hook": 1,
    "hook-worker": 1,
}


_LOOKS = 8  # Checks in a row.


async def until_connected(
    postgres: Postgres, column: str, value: str, count: int, *, beside: Collection[int] = ()
) -> None:
    """Wait until there are that many connections without those in `beside`, several times in a row.

    A pool that is too large has the right size for a moment while it opens. Raises AssertionError
    with the last number.
    """
    found, looks = -1, 0
    try:
        async with asyncio.timeout(60):
            while looks < _LOOKS:
                await asyncio.sleep(0.05)
                found = len(await connected(postgres, column, value) - set(beside))
                looks = looks + 1 if found == count else 0
    except TimeoutError:
        raise AssertionError(f"{found} connections, and not {count}") from None


async def connected(postgres: Postgres, column: str, value: str) -> set[int]:
    """Return the ids of the backends of PostgreSQL whose column has the value."""
    query = f"select pid from pg_stat_activity where {column} = %s"
    async with await psycopg.AsyncConnection.connect(postgres.superuser_dsn, autocommit=True) as superuser:
        return {pid for (pid,) in await (await superuser.execute(query, (value,))).fetchall()}
