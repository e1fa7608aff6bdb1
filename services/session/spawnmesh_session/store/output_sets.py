"""Sets of files that runs publish."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.output_sets import BegunOutputSet, OutputFile, OutputSet, PublishedName
from spawnmesh_session.domain.runs import Run
from spawnmesh_session.store.rows import MAX_LIST_BYTES

_SQL = load_statements(__name__)


async def find_output_set(
    connection: Connection, tenant_id: str, set_id: str
) -> OutputSet | BegunOutputSet | None:
    """Return the set, which may only be begun; None if there is none."""
    values = {"tenant_id": tenant_id, "set_id": set_id}
    row = await (await connection.execute(_SQL["find_output_set"], values)).fetchone()
    if row is None:
        return None
    return BegunOutputSet(set_id) if row["position"] is None else _output_set(row)


async def begin_output_set(
    connection: Connection, tenant_id: str, run: Run, set_id: str, request_id: str
) -> None:
    """Write the row of a set that the locked run is about to store, unless there is one."""
    values = {
        "tenant_id": tenant_id,
        "set_id": set_id,
        "session_id": run.session_id,
        "run_id": run.run_id,
        "request_id": request_id,
    }
    await connection.execute(_SQL["begin_output_set"], values)


async def publish_output_set(
    connection: Connection,
    tenant_id: str,
    set_id: str,
    files: Sequence[OutputFile],
    *,
    position: int,
    now: datetime,
) -> OutputSet:
    """Publish a set that was begun and is stored, and count its files for its locked run."""
    values = {
        "tenant_id": tenant_id,
        "set_id": set_id,
        "files": Jsonb([asdict(file) for file in files]),
        "file_count": len(files),
        "total_bytes": sum(file.size_bytes for file in files),
        "position": position,
        "publish_time": now,
    }
    [row] = await (await connection.execute(_SQL["publish_output_set"], values)).fetchall()
    return _output_set(row)


@dataclass(frozen=True, slots=True)
class OutputSetQuery:
    """The sets of a session to list. An empty text does not filter."""

    session_id: str
    run_id: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class OutputSetsPage:
    """Sets in their order.

    The next page begins after `next_after_position`; None on the last page.
    """

    sets: list[OutputSet]
    next_after_position: int | None


async def list_output_sets(
    connection: Connection, tenant_id: str, query: OutputSetQuery, *, after_position: int, page_size: int
) -> OutputSetsPage:
    """Return a page of the sets that the query finds. It has fewer if they are large."""
    values: dict[str, Any] = {
        **asdict(query),
        "tenant_id": tenant_id,
        "after_position": after_position,
        "limit": page_size + 1,
        "max_bytes": MAX_LIST_BYTES,
    }
    rows = await (await connection.execute(_SQL["list_output_sets"], values)).fetchall()
    listed = rows[:page_size]
    has_more = bool(rows) and len(listed) < rows[0]["page_count"]
    return OutputSetsPage([_output_set(row) for row in listed], listed[-1]["position"] if has_more else None)


async def list_published_names(
    connection: Connection, tenant_id: str, run: Run, limit: int
) -> list[PublishedName]:
    """Return the first files that the run has published, in their order."""
    values = {"tenant_id": tenant_id, "session_id": run.session_id, "run_id": run.run_id, "limit": limit}
    rows = await (await connection.execute(_SQL["list_published_names"], values)).fetchall()
    return [PublishedName(**row) for row in rows]


async def blank_output_sets(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Remove the names of the files of deleted sessions.

    The ids remain until the sets are released.
    """
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["blank_output_sets"], values)


async def list_output_set_ids(
    connection: Connection, tenant_id: str, session_id: str, limit: int
) -> list[str]:
    """Return the ids of some of the session's sets, published or begun."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "limit": limit}
    rows = await (await connection.execute(_SQL["list_output_set_ids"], values)).fetchall()
    return [row["set_id"] for row in rows]


async def delete_output_sets(connection: Connection, tenant_id: str, set_ids: Sequence[str]) -> None:
    """Forget sets that are released."""
    values = {"tenant_id": tenant_id, "set_ids": list(set_ids)}
    await connection.execute(_SQL["delete_output_sets"], values)


def _output_set(row: Row) -> OutputSet:
    return OutputSet(
        set_id=row["set_id"],
        session_id=row["session_id"],
        run_id=row["run_id"],
        request_id=row["request_id"],
        position=row["position"],
        files=tuple(OutputFile(**file) for file in row["files"]),
        publish_time=row["publish_time"],
    )
