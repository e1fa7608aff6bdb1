"""Schedules and their firings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import kwargs_row
from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.bounded_pages import bounded_page, scanned_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.schedules import CatchUpPolicy, Firing, FiringOutcome, OverlapPolicy, Schedule

MAX_SCANNED_FIRINGS = 5_000
"""Firings at which a page looks, so that its cost is bounded whatever the filter."""

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class FiringQuery:
    """The filter of a list of firings. None does not filter.

    `before_time` and `before_id` name the last row of the previous page.
    """

    outcome: FiringOutcome | None
    start_time: datetime
    end_time: datetime
    before_time: datetime
    before_id: str


@dataclass(frozen=True, slots=True)
class FiringsPage:
    """Firings, newest due time first.

    The next page begins before `end`, a time and an id. It is None on the last page.
    """

    firings: list[Firing]
    end: tuple[datetime, str] | None


async def count_schedules(connection: Connection, tenant_id: str) -> int:
    """Return the number of the tenant's schedules."""
    row = await _one(connection, "count_schedules", tenant_id=tenant_id)
    return row["schedule_count"] if row else 0


async def get_schedule(connection: Connection, tenant_id: str, name: str) -> Schedule:
    """Return the schedule. Raise NOT_FOUND."""
    return _require(await _one(connection, "get_schedule", tenant_id=tenant_id, name=name), name)


async def find_and_lock_schedule(connection: Connection, tenant_id: str, name: str) -> Schedule | None:
    """Return the schedule, if there is one. It does not change until the transaction ends."""
    row = await _one(connection, "lock_schedule", tenant_id=tenant_id, name=name)
    return _schedule_of(row) if row else None


async def lock_schedule(connection: Connection, tenant_id: str, name: str) -> Schedule:
    """Return the schedule, which does not change until the transaction ends. Raise NOT_FOUND."""
    return _require(await _one(connection, "lock_schedule", tenant_id=tenant_id, name=name), name)


async def lock_schedule_by_id(connection: Connection, tenant_id: str, schedule_id: str) -> Schedule | None:
    """Return the schedule of a job, unless it was deleted. It does not change until the end."""
    row = await _one(connection, "lock_schedule_by_id", tenant_id=tenant_id, schedule_id=schedule_id)
    return _schedule_of(row) if row else None


async def list_schedules(connection: Connection, tenant_id: str) -> list[Schedule]:
    """Return the tenant's schedules, ordered by their names."""
    cursor = await connection.execute(_SQL["list_schedules"], {"tenant_id": tenant_id})
    return [_schedule_of(row) for row in await cursor.fetchall()]


async def write_schedule(connection: Connection, tenant_id: str, schedule: Schedule) -> Schedule:
    """Add the schedule if it has no id so far, or change it, and return it as it is stored."""
    statement = "update_schedule" if schedule.schedule_id else "insert_schedule"
    row = await _one(
        connection,
        statement,
        tenant_id=tenant_id,
        name=schedule.name,
        schedule_id=schedule.schedule_id or new_id(IdKind.SCHEDULE),
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        spawn=schedule.spawn,
        overlap=schedule.overlap.value,
        catch_up=schedule.catch_up.value,
        cursor_time=schedule.cursor_time,
        updated_by=schedule.updated_by,
    )
    return _require(row, schedule.name)


async def set_paused(
    connection: Connection, tenant_id: str, name: str, cursor_time: datetime, *, paused: bool
) -> Schedule:
    """Pause or resume the locked schedule, whose due times count from `cursor_time` on."""
    values = {"tenant_id": tenant_id, "name": name, "cursor_time": cursor_time, "paused": paused}
    return _require(await _one(connection, "set_paused", **values), name)


async def move_cursor(
    connection: Connection, tenant_id: str, schedule_id: str, cursor_time: datetime
) -> None:
    """Move the cursor of the locked schedule."""
    values = {"tenant_id": tenant_id, "schedule_id": schedule_id, "cursor_time": cursor_time}
    await connection.execute(_SQL["move_cursor"], values)


async def set_sessions(
    connection: Connection, tenant_id: str, schedule_id: str, session_ids: Sequence[str]
) -> None:
    """Record the sessions of the locked schedule that may go on."""
    values = {"tenant_id": tenant_id, "schedule_id": schedule_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["set_sessions"], values)


async def set_busy(
    connection: Connection, tenant_id: str, schedule_id: str, busy_until: datetime | None
) -> None:
    """Record until when a worker fires a due time of the schedule; None if none does any more."""
    values = {"tenant_id": tenant_id, "schedule_id": schedule_id, "busy_until": busy_until}
    await connection.execute(_SQL["set_busy"], values)


async def delete_schedule(connection: Connection, tenant_id: str, schedule: Schedule) -> None:
    """Delete the locked schedule with its history."""
    await connection.execute(_SQL["delete_schedule"], {"tenant_id": tenant_id, "name": schedule.name})
    values = {"tenant_id": tenant_id, "schedule_id": schedule.schedule_id}
    await connection.execute(_SQL["delete_firings"], values)


async def insert_firing(connection: Connection, tenant_id: str, schedule_id: str, firing: Firing) -> bool:
    """Add the firing, unless it is there. Return whether it was added."""
    values = {"schedule_id": schedule_id, **_values(firing)}
    return await _one(connection, "insert_firing", tenant_id=tenant_id, **values) is not None


async def find_firing(
    connection: Connection, tenant_id: str, schedule_id: str, firing_id: str
) -> Firing | None:
    """Return the firing, if it is there."""
    row = await _one(
        connection, "get_firing", tenant_id=tenant_id, schedule_id=schedule_id, firing_id=firing_id
    )
    return _firing_of(row) if row else None


async def next_due_firing(connection: Connection, tenant_id: str, schedule_id: str) -> Firing | None:
    """Return the oldest firing that is DUE."""
    row = await _one(connection, "next_due_firing", tenant_id=tenant_id, schedule_id=schedule_id)
    return _firing_of(row) if row else None


async def end_firing(connection: Connection, tenant_id: str, schedule_id: str, firing: Firing) -> bool:
    """Set the result of a firing that is DUE. Return whether it was."""
    values = {"schedule_id": schedule_id, **_values(firing)}
    return await _one(connection, "end_firing", tenant_id=tenant_id, **values) is not None


async def begin_attempt(
    connection: Connection, tenant_id: str, schedule_id: str, firing_id: str, now: datetime
) -> datetime | None:
    """Return the time of the first attempt of a firing that is DUE; None if it is not any more."""
    row = await _one(
        connection,
        "begin_attempt",
        tenant_id=tenant_id,
        schedule_id=schedule_id,
        firing_id=firing_id,
        attempt_time=now,
    )
    return row["attempt_time"] if row else None


async def newest_firing(connection: Connection, tenant_id: str, schedule_id: str) -> Firing | None:
    """Return the firing with the newest due time that has a result."""
    row = await _one(connection, "newest_firing", tenant_id=tenant_id, schedule_id=schedule_id)
    return _firing_of(row) if row else None


async def list_firings(
    connection: Connection,
    tenant_id: str,
    schedule_id: str,
    query: FiringQuery,
    *,
    page_size: int,
    scan_limit: int = MAX_SCANNED_FIRINGS,
) -> FiringsPage:
    """Return a page of firings.

    The page has fewer of them, or none, if few of the `scan_limit` at which it looks are wanted.
    """
    values = {
        "tenant_id": tenant_id,
        "schedule_id": schedule_id,
        "limit": page_size + 1,
        "scan_limit": scan_limit,
        "outcome": query.outcome.value if query.outcome else "",
        "start_time": query.start_time,
        "end_time": query.end_time,
        "before_time": query.before_time,
        "before_id": query.before_id,
    }
    async with connection.cursor(row_factory=kwargs_row(scanned_row(_listed_firing))) as cursor:
        await cursor.execute(_SQL["list_firings"], values)
        page, last = bounded_page(await cursor.fetchall(), page_size)
    end = None if last is None else (last.due_time, last.firing_id)
    return FiringsPage(page, end)


async def delete_due_firings(connection: Connection, tenant_id: str, schedule_id: str) -> None:
    """Delete the firings that are DUE."""
    values = {"tenant_id": tenant_id, "schedule_id": schedule_id}
    await connection.execute(_SQL["delete_due_firings"], values)


async def prune_firings(connection: Connection, tenant_id: str, older_than: timedelta, limit: int) -> int:
    """Delete at most `limit` firings that are older; return the number."""
    values = {"tenant_id": tenant_id, "older_than": older_than, "limit": limit}
    return (await connection.execute(_SQL["prune_firings"], values)).rowcount


async def _one(connection: Connection, statement: str, **values: object) -> Row | None:
    return await (await connection.execute(_SQL[statement], values)).fetchone()


def _require(row: Row | None, name: str) -> Schedule:
    if row is None:
        raise not_found("schedule", name)
    return _schedule_of(row)


def _schedule_of(row: Row) -> Schedule:
    policies = {"overlap": OverlapPolicy(row["overlap"]), "catch_up": CatchUpPolicy(row["catch_up"])}
    values = {"spawn": bytes(row["spawn"]), "session_ids": tuple(row["session_ids"])}
    return Schedule(**{**row, **policies, **values})


def _values(firing: Firing) -> dict[str, object]:
    return {**asdict(firing), "outcome": firing.outcome.value}


def _listed_firing(**columns: Any) -> Firing:
    return _firing_of(columns)


def _firing_of(row: Row) -> Firing:
    names = Firing.__dataclass_fields__
    return Firing(**{**{name: row[name] for name in names}, "outcome": FiringOutcome(row["outcome"])})
