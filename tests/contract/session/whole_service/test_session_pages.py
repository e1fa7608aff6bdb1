"""A page of ListSessions has a bounded cost, whatever it leaves out."""

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token
from spawnmesh_postgres.database import Database
from spawnmesh_session.domain.sessions import SessionOrder
from spawnmesh_session.store.session_lists import MAX_SCANNED_SESSIONS

from tests.support.page_keys import page_key_from
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains
from tests.support.session.statements import SQL, list_values

COUNT = 2 * MAX_SCANNED_SESSIONS + 200

# Copies of a session with ids from old to new. The first `visible` ones are not archived.
_COPY = """
insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, label,
    model, mode, context, cleanup, runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout,
    task_hash, traceparent, end_time, archive_time)
select tenant_id, substr(session_id, 1, 25) || lpad(n::text, 5, '0'), %(label)s || n, '', 'CLOSED', agent_id,
    %(label)s, model, mode, context, cleanup, runtime, %(parent)s, '', %(ancestors)s, run_timeout, '', '',
    now(), case when n > %(visible)s then now() end
from session.sessions, generate_series(1, %(count)s) n
where tenant_id = %(tenant)s and session_id = %(copied)s
"""

PAGES = {
    "ALL NEWEST": ("label != child", SessionOrder.NEWEST),
    "ALL OLDEST": ("run_state = FAILED AND failure_reason = KILLED", SessionOrder.OLDEST),
    "CHILDREN NEWEST": ("parent_session_id = {root} AND label = none", SessionOrder.NEWEST),
    "CHILDREN OLDEST": ("parent_session_id = {root}", SessionOrder.OLDEST),
    "LABELLED NEWEST": ("label = child AND state = ACTIVE", SessionOrder.NEWEST),
    "LABELLED OLDEST": ("label = child AND run_state != FAILED", SessionOrder.OLDEST),
    "LIVE NEWEST": ("state = ACTIVE AND agent_id = none", SessionOrder.NEWEST),
    "LIVE OLDEST": ("state = ACTIVE", SessionOrder.OLDEST),
    "ENDED LAST_ENDED": ("end_time < 2999-01-01T00:00:00Z AND agent_id = none", SessionOrder.LAST_ENDED),
}
"""By source and order. Most leave out all sessions at which they look."""
WITHOUT_STATISTICS = {"ALL NEWEST", "ALL OLDEST", "CHILDREN NEWEST", "CHILDREN OLDEST"}

Call = Callable[[pb.ListSessionsRequest], Awaitable[pb.ListSessionsResponse]]


async def copy(
    remains: Remains, mesh: Mesh, copied: str, label: str, *, parent: str = "", visible: int = 0
) -> None:
    values = {
        "tenant": mesh.tenant,
        "copied": copied,
        "label": label,
        "parent": parent,
        "ancestors": [parent] if parent else [],
        "visible": visible,
        "count": COUNT,
    }
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute(_COPY, values)


async def labels_of(call: Call, **asked: Any) -> list[str]:
    """Return the labels on all pages, sorted."""
    return sorted(label for page in await pages_of(call, **asked) for label in page)


async def pages_of(call: Call, **asked: Any) -> list[list[str]]:
    """Return the labels of every page."""
    request = pb.ListSessionsRequest(**asked)
    pages: list[list[str]] = []
    while not pages or request.page_token:
        page = await call(request)
        pages.append([session.label for session in page.sessions])
        request.page_token = page.next_page_token
    return pages


def as_client(mesh: Mesh) -> Call:
    return lambda request: mesh.client(mesh.sessions.ListSessions, request)


async def test_ListSessions__pages_behind_many_archived_sessions(mesh: Mesh, remains: Remains) -> None:
    first = (await mesh.spawn(label="first")).session_id
    await copy(remains, mesh, first, "copy", visible=2)
    pages = await pages_of(as_client(mesh))
    assert await labels_of(as_client(mesh)) == ["copy", "copy", "first"]
    assert len(pages) == COUNT // MAX_SCANNED_SESSIONS + 1
    everything = await pages_of(as_client(mesh), include_archived=True, page_size=500)
    assert [len(page) for page in everything] == [500] * (COUNT // 500) + [COUNT % 500 + 1]


async def test_ListSessions__children_behind_many_archived_ones(mesh: Mesh, remains: Remains) -> None:
    parent, other = [(await mesh.spawn(label=label)).session_id for label in ("parent", "other")]
    await copy(remains, mesh, parent, "child", parent=parent, visible=2)
    await copy(remains, mesh, other, "stranger", parent=other, visible=2)
    pages = await pages_of(as_client(mesh), filter=f"parent_session_id = {parent}")
    assert [label for page in pages for label in page] == ["child", "child"]
    assert len(pages) == COUNT // MAX_SCANNED_SESSIONS + 1


async def test_ListSessions__a_run_lists_its_large_family_and_no_other(mesh: Mesh, remains: Remains) -> None:
    root = (await mesh.spawn(label="root")).session_id
    held = await mesh.claim(root)
    stranger = (await mesh.spawn(label="stranger")).session_id
    await copy(remains, mesh, root, "child", parent=root, visible=2)
    await copy(remains, mesh, stranger, "stranger", parent=stranger, visible=2)

    async def as_run(request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        return await mesh.run(held, mesh.sessions.ListSessions, request)

    assert await labels_of(as_run) == ["child", "child", "root"]
    assert len(await labels_of(as_run, include_archived=True, page_size=500)) == COUNT + 1
    assert await labels_of(as_run, filter=f"parent_session_id = {root}") == ["child", "child"]
    assert await pages_of(as_run, filter=f"parent_session_id = {stranger}") == [[]]


async def test_ListSessions__a_run_finds_itself_among_the_children_of_its_parent(mesh: Mesh) -> None:
    parent = await mesh.spawn(label="parent")
    held_parent = await mesh.claim(parent.session_id)
    child = await mesh.spawn_as(held_parent, label="child")
    await mesh.spawn_as(held_parent, label="sibling")
    held = await mesh.claim(child.session_id)

    async def as_run(request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        return await mesh.run(held, mesh.sessions.ListSessions, request)

    of_parent = f"parent_session_id = {parent.session_id}"
    assert await pages_of(as_run, filter=of_parent) == [["child"]]
    behind = pb.ListSessionsRequest(filter=of_parent)
    with page_key_from(mesh.keys, "session"):
        token = page_token([child.session_id], behind, mesh.tenant, child.session_id)
    assert await pages_of(as_run, filter=of_parent, page_token=token) == [[]]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_a_page_reads_a_bounded_number_of_rows(
    mesh: Mesh, remains: Remains, session_database: Database, mode: str
) -> None:
    root = (await mesh.spawn(label="root")).session_id
    await copy(remains, mesh, root, "child", parent=root)
    page = {"tenant_id": mesh.tenant, "limit": 51, "scan_limit": 100, "include_archived": False}
    rows: dict[str, int] = {}
    family = {**list_values(family_root=root), **page}
    rows["family"] = await _most_rows(session_database, "list_descendants ALL NEWEST", family, mode)
    # For these, no other index is as cheap, whatever PostgreSQL believes of the tenant.
    for name in sorted(PAGES, key=lambda name: name not in WITHOUT_STATISTICS):
        if name not in WITHOUT_STATISTICS:
            await analyze(remains)
        filter_, order = PAGES[name]
        values = {**list_values(filter_.format(root=root), order), **page, "include_archived": False}
        rows[name] = await _most_rows(session_database, f"list_sessions {name}", values, mode)
    assert {name: count for name, count in rows.items() if count > 101} == {}


async def analyze(remains: Remains) -> None:
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute("analyze session.sessions")


async def _most_rows(database: Database, name: str, values: dict[str, Any], mode: str) -> int:
    """Return the largest number of rows that a node of the plan reads."""
    async with database.transaction(values["tenant_id"]) as connection:
        await connection.execute("select set_config('plan_cache_mode', %s, true)", (mode,))
        explained = await connection.execute(
            f"explain (analyze, format json) {SQL[name]}", values, prepare=False
        )
        row = await explained.fetchone()
    assert row is not None
    return max(_rows(row["QUERY PLAN"][0]["Plan"]))


def _rows(node: dict[str, Any]) -> list[int]:
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return [round(read), *(rows for child in node.get("Plans", ()) for rows in _rows(child))]
