"""Lists of sessions: pages of bounded cost, in the orders that an index has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb
from spawnmesh_core.ids import IdKind, lowest_id
from spawnmesh_postgres.bounded_pages import ScannedRow, bounded_page, scanned_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.session_filters import SessionFilter
from spawnmesh_session.domain.sessions import Session, SessionOrder
from spawnmesh_session.store.rows import MAX_LIST_BYTES, session_of

MAX_SCANNED_SESSIONS = 1_000
"""Sessions at which a page looks, so that its cost is bounded whatever the filter."""

_CLOCK_SKEW = timedelta(hours=1)
"""Ids have the time of a replica's clock, and `create_time` has that of the database. A list with
bounds of `create_time` does not look at ids that are outside of them by more than this."""

_AFTER_ALL_IDS = "u"

_SQL = load_statements(__name__)


class ListSource(Enum):
    """The conditions of the index from which a list comes, from the narrowest to the widest."""

    ENDED = (
        "end_time >= '-infinity' and delete_time is null"
        " and end_time >= coalesce(%(end_begin)s::timestamptz, '-infinity')"
        " and (end_time, session_id) < (coalesce(%(last_time)s::timestamptz, 'infinity'), %(last_id)s)"
    )
    """sessions_undeleted_idx"""
    ROOT = "session_id = %(family_root)s"
    """sessions_pkey"""
    CHILDREN = "parent_session_id = %(parent_session_id)s::text"
    """sessions_child_idx"""
    LABELLED = "label = %(label)s::text and label > ''"
    """sessions_label_idx"""
    LIVE = "end_time is null"
    """sessions_live_idx"""
    ALL = "true"
    """sessions_pkey"""


_ORDERS = {
    SessionOrder.NEWEST: "session_id desc",
    SessionOrder.OLDEST: "session_id",
    SessionOrder.LAST_ENDED: "end_time desc, session_id desc",
}


@dataclass(frozen=True, slots=True)
class ListPlace:
    """The place of a session in a list: its id, and its end time if that orders the list."""

    session_id: str
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """The sessions to list, in their order, after a place of it.

    A `family_root` leaves out all sessions but itself and its descendants. Without `is_full`,
    results and receipts have no texts and no files.
    """

    filter: SessionFilter
    order: SessionOrder
    after: ListPlace | None
    family_root: str
    include_archived: bool
    is_full: bool


@dataclass(frozen=True, slots=True)
class SessionsPage:
    """Sessions in their order. The next page begins after `end`, None on the last page."""

    sessions: list[Session]
    end: ListPlace | None


async def list_sessions(
    connection: Connection, tenant_id: str, query: SessionQuery, *, page_size: int
) -> SessionsPage:
    """Return a page of the sessions that the query finds.

    The page has fewer sessions, or none, if they are large, or if few of the MAX_SCANNED_SESSIONS
    at which it looks are wanted.
    """
    if query.filter.is_empty:
        return SessionsPage([], None)
    values = {
        **query_values(query),
        "tenant_id": tenant_id,
        "limit": page_size + 1,
        "scan_limit": MAX_SCANNED_SESSIONS,
    }
    source = source_of(query)
    if query.family_root and source is ListSource.CHILDREN:
        # A parent outside of the family has no child in it, except the root of the family.
        if await (await connection.execute(_SQL["is_in_family"], values)).fetchone() is None:
            source = ListSource.ROOT
    elif query.family_root:
        found = await _find(connection, list_statement("list_descendants", source, query.order), values)
        if all(row.item.session_id for row in found):  # The row of a large family has none.
            return await _page_of(connection, tenant_id, query, found, page_size)
    found = await _find(connection, list_statement("list_sessions", source, query.order), values)
    return await _page_of(connection, tenant_id, query, found, page_size)


async def list_requested(
    connection: Connection,
    tenant_id: str,
    *,
    request_id: str,
    spawner: str,
    include_archived: bool,
    is_full: bool,
) -> SessionsPage:
    """Return the session that the spawner requested by this id, as a page."""
    values = {
        "tenant_id": tenant_id,
        "request_id": request_id,
        "spawner": spawner,
        "include_archived": include_archived,
    }
    query = SessionQuery(SessionFilter(), SessionOrder.NEWEST, None, "", include_archived, is_full)
    found = await _find(connection, _SQL["list_requested"], values)
    return await _page_of(connection, tenant_id, query, found, page_size=1)


def source_of(query: SessionQuery) -> ListSource:
    """Return the narrowest source that has all sessions of the query in their order."""
    wanted = query.filter
    if query.order is SessionOrder.LAST_ENDED:
        return ListSource.ENDED
    if wanted.parent_session_id.equal is not None:
        return ListSource.CHILDREN
    if wanted.label.equal:
        return ListSource.LABELLED
    return ListSource.LIVE if wanted.is_live else ListSource.ALL


def list_statement(name: str, source: ListSource, order: SessionOrder) -> str:
    """Return `list_sessions` or `list_descendants` from this source in this order."""
    texts = {"{source}": source.value, "{order}": _ORDERS[order], "{matches}": _SQL["session_matches"]}
    statement = _SQL[name]
    for place, text in texts.items():
        statement = statement.replace(place, text)
    return statement


def query_values(query: SessionQuery) -> dict[str, Any]:
    """Return the values of the placeholders, without the tenant and the limits."""
    wanted, after = query.filter, query.after
    created = wanted.create_time
    low_id = _lowest_id_at(created.begin, -_CLOCK_SKEW) if created.begin else ""
    high_id = _lowest_id_at(created.end, _CLOCK_SKEW) if created.end else _AFTER_ALL_IDS
    if after and query.order is SessionOrder.NEWEST:
        high_id = after.session_id
    elif after and query.order is SessionOrder.OLDEST:
        low_id = after.session_id
    return {
        "low_id": low_id,
        "high_id": high_id,
        "last_time": after.end_time if after else wanted.end_time.end,
        "last_id": after.session_id if after else "",
        "family_root": query.family_root,
        "include_archived": query.include_archived,
        "states": _names(wanted.states),
        "run_states": _names(wanted.run_states),
        "agent_id": wanted.agent_id.equal,
        "other_agent_ids": sorted(wanted.agent_id.others),
        "label": wanted.label.equal,
        "other_labels": sorted(wanted.label.others),
        "parent_session_id": wanted.parent_session_id.equal,
        "other_parent_session_ids": sorted(wanted.parent_session_id.others),
        "failure_reason": wanted.failure_reason.equal,
        "other_failure_reasons": sorted(wanted.failure_reason.others),
        "compares_failure": not wanted.failure_reason.is_open,
        "metadata": Jsonb(dict(wanted.metadata)),
        "metadata_keys": sorted(wanted.metadata_keys),
        "other_metadata": [Jsonb({key: value}) for key, value in sorted(wanted.other_metadata)],
        "create_begin": created.begin,
        "create_end": created.end,
        "is_ended": wanted.is_ended,
        "end_begin": wanted.end_time.begin,
        "end_end": wanted.end_time.end,
    }


def _names(states: frozenset[Any] | None) -> list[str] | None:
    return None if states is None else sorted(state.value for state in states)


def _lowest_id_at(time: datetime, shift: timedelta) -> str:
    return lowest_id(IdKind.SESSION, int((time.timestamp() + shift.total_seconds()) * 1000))


async def _find(
    connection: Connection, statement: str, values: Mapping[str, Any]
) -> list[ScannedRow[ListPlace]]:
    async with connection.cursor(row_factory=kwargs_row(scanned_row(ListPlace))) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall()


async def _page_of(
    connection: Connection,
    tenant_id: str,
    query: SessionQuery,
    found: Sequence[ScannedRow[ListPlace]],
    page_size: int,
) -> SessionsPage:
    listed, last = bounded_page(found, page_size)
    end = _end_of(last, query) if last else None
    if not listed:
        return SessionsPage([], end)
    values = {
        "tenant_id": tenant_id,
        "session_ids": [place.session_id for place in listed],
        "max_bytes": MAX_LIST_BYTES,
        "is_full": query.is_full,
    }
    rows = await (await connection.execute(_SQL["read_sessions"], values)).fetchall()
    sessions = [session_of({**row, "receipt": row["shown_receipt"]}) for row in rows]
    if sessions and len(sessions) < len(listed):  # The rest did not fit, or was deleted meanwhile.
        end = _end_of(ListPlace(sessions[-1].session_id, sessions[-1].end_time), query)
    return SessionsPage(sessions, end)


def _end_of(place: ListPlace, query: SessionQuery) -> ListPlace:
    return place if query.order is SessionOrder.LAST_ENDED else replace(place, end_time=None)
