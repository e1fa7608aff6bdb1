"""Ends that observers are still to be told of."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import EVERY_TENANT, Database

from spawnmesh_session.store import runs
from spawnmesh_session.store.statements import SQL

CHANNEL = "end_waits"
_TRIES = 3  # Of a tenant's plugins that fail.
_KEPT_FOR = timedelta(days=1)
_SHORTEST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class UntoldEnd:
    """The end of a run, or of a spawn that failed, which has no run."""

    session_id: str
    run_id: str
    parent_session_id: str
    outcome: str
    traceparent: str

    @property
    def subject_id(self) -> str:
        """Names it in the queue."""
        return self.run_id or self.session_id


@dataclass(frozen=True, slots=True)
class Taken:
    """An end that the caller is to tell; plugins that say where may be asked `tries_left` times."""

    tenant_id: str
    end: UntoldEnd
    tries_left: int


async def insert(database: Database, tenant_id: str, end: UntoldEnd) -> None:
    """Whoever tells observers will hear of it; does nothing where it waits already."""
    values = {
        "tenant_id": tenant_id,
        "subject_id": end.subject_id,
        "details": Jsonb(asdict(end)),
        "attempts_left": _TRIES,
        "kept_for": _KEPT_FOR,
    }
    async with database.transaction(tenant_id) as connection:
        await connection.execute(SQL["insert_end"], values)


async def take(database: Database, limit: int, share: int, busy: Mapping[str, int], held_for: timedelta) -> list[Taken]:
    """At most `limit`, and of each tenant `share` less what it is `busy` with; nobody else takes them for as long as they are held."""
    async with database.transaction(EVERY_TENANT) as connection:
        rows = await runs.take_overdue(connection, runs.END, runs.Page(limit, share, busy), held_for)
    return [Taken(row["tenant_id"], UntoldEnd(**row["details"]), row["attempts_left"]) for row in rows]


async def delete(database: Database, taken: Taken) -> None:
    """It was told, or is not told any more."""
    async with database.transaction(taken.tenant_id) as connection:
        await runs.delete_dispatch(connection, taken.tenant_id, runs.END, taken.end.subject_id)


async def put_off(database: Database, taken: Taken, *, plugins_failed: bool) -> bool:
    """It comes again: soon, with a try less, where plugins failed, else in as much time as it has waited. False where its time is over."""
    values = {
        "tenant_id": taken.tenant_id,
        "subject_id": taken.end.subject_id,
        "kept_for": _KEPT_FOR,
        "at_least": _SHORTEST_PAUSE,
        "at_most": _SHORTEST_PAUSE if plugins_failed else _LONGEST_PAUSE,
        "used": int(plugins_failed),
    }
    async with database.transaction(taken.tenant_id) as connection:
        row = await (await connection.execute(SQL["put_off_end"], values)).fetchone()
    return row is None or not row["is_over"]


async def give_back(database: Database, taken: Taken) -> None:
    """Somebody else may take it at once."""
    async with database.transaction(taken.tenant_id) as connection:
        await runs.delay_dispatch(connection, taken.tenant_id, runs.END, taken.end.subject_id, timedelta(0))
