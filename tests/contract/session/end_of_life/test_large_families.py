"""Deletions of families and tenants that are too large for one call or transaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_session.app import make_job_worker, make_sweeper
from spawnmesh_session.domain.job_kinds import DELETE_FAMILY, DELETE_SESSION

from tests.support.serving import caller_at
from tests.support.session.calls import DAY
from tests.support.session.crashing import Crash, Steps, crashing
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of, make_due, work_once

PAGE = 500  # Of a deletion.

_COPY = """
insert into session.sessions
select (jsonb_populate_record(s, to_jsonb(s) || jsonb_build_object(
    'session_id', left(s.session_id, 16) || %(mark)s || lpad(place::text, 6, '0') || lpad(n::text, 6, '0'),
    'request_id', s.request_id || %(mark)s || place || '-' || n,
    'parent_session_id', parent, 'ancestor_ids', to_jsonb(array_remove(array[parent], '')),
    'state', case when %(ended_for)s::interval is null then 'ACTIVE' else 'CLOSED' end, 'end_time',
        now() - %(ended_for)s::interval))).*
from session.sessions s, unnest(%(parents)s::text[]) with ordinality as given (parent, place),
     generate_series(1, %(count)s::int) n
where tenant_id = %(tenant)s and session_id = %(original)s
returning session_id
"""


async def copies(
    remains: Remains,
    tenant: str,
    original: str,
    count: int,
    mark: str,
    *,
    parents: list[str],
    ended_for: timedelta | None = timedelta(days=2),
) -> list[str]:
    """Sessions like the one that is there, so many for each parent; ended for so long, or active.

    Their ids, marked with two letters.
    """
    values = {"tenant": tenant, "original": original, "count": count, "mark": mark, "parents": parents}
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        rows = await (await link.execute(_COPY, {**values, "ended_for": ended_for})).fetchall()
    return [row[0] for row in rows]


async def left(remains: Remains, tenant: str) -> int:
    return await remains.count(tenant, "session.sessions where delete_time is null")


async def delete(mesh: Mesh, session_id: str, *, timeout: float = 60.0) -> int:
    request = pb.DeleteSessionRequest(session_id=session_id)
    return int(
        (await mesh.client(mesh.sessions.DeleteSession, request, timeout=timeout)).deleted_session_count
    )


@pytest.fixture(autouse=True)
async def nothing_to_do(mesh: Mesh, remains: Remains) -> AsyncIterator[None]:
    """Remove the queue's entries of the test, so that other tests need not work on them."""
    yield
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute("set search_path to session")
        await link.execute("delete from run_queue where tenant_id = %s", (mesh.tenant,))
        await link.execute("delete from jobs where tenant_id = %s", (mesh.tenant,))


async def test_DeleteSession__large_family_cut_off_between_pages_is_found_and_deleted_to_its_end(
    mesh: Mesh, remains: Remains
) -> None:
    """Without its root, no caller could name the rest of the family."""
    family = (await mesh.spawn()).session_id
    await copies(remains, mesh.tenant, family, 2 * PAGE, "aa", parents=[family])
    seen = []
    for crash_at in (2, 3, 5):  # In the first page, behind it, and in the second.
        before = await left(remains, mesh.tenant)
        async with components_of(mesh.settings) as components:
            with impersonate(mesh.tenant), pytest.raises(Crash):
                await crashing(components, Steps(crash_at)).deps.deleter.delete(mesh.tenant, family)
        assert (await mesh.get(family)).session_id == family
        seen.append(before - await left(remains, mesh.tenant))
    assert seen == [0, PAGE, PAGE]
    assert await delete(mesh, family) == 1
    assert await left(remains, mesh.tenant) == 0


async def test_DeleteSession__large_family_that_a_call_left_is_deleted_by_the_service(
    mesh: Mesh, remains: Remains
) -> None:
    """The call was cut off before, between and after its pages; nobody repeats it."""
    for mark, crash_at in (("aa", 2), ("bb", 3), ("cc", 5)):
        family = (await mesh.spawn()).session_id
        await copies(remains, mesh.tenant, family, 2 * PAGE, mark, parents=[family])
        async with components_of(mesh.settings) as components:
            with impersonate(mesh.tenant), pytest.raises(Crash):
                await crashing(components, Steps(crash_at)).deps.deleter.delete(mesh.tenant, family)
            is_begun = f"session.jobs where kind = '{DELETE_FAMILY}'"
            assert await remains.count(mesh.tenant, is_begun) == (crash_at > 2)
            await make_due(remains.dsn, mesh.tenant)
            await make_job_worker(components, mesh.settings).run_due(DELETE_FAMILY)
            assert await remains.count(mesh.tenant, is_begun) == 0
        if crash_at == 2:  # Nothing was deleted, and the caller got an error.
            assert await delete(mesh, family) == 2 * PAGE + 1
        assert await left(remains, mesh.tenant) == 0


async def test_DeleteSession__large_family_that_lives_is_ended_in_pages_and_gone_when_it_answers(
    mesh: Mesh, remains: Remains
) -> None:
    root = (await mesh.spawn()).session_id
    await copies(remains, mesh.tenant, root, PAGE + 1, "aa", parents=[root], ended_for=None)
    async with components_of(mesh.settings) as components:
        with impersonate(mesh.tenant), pytest.raises(Crash):
            await crashing(components, Steps(5)).deps.deleter.delete(mesh.tenant, root)
    assert (await mesh.get(root)).state == session_pb2.SESSION_STATE_CLOSED, "what is ended stays so"
    assert await remains.count(mesh.tenant, "session.sessions where state = 'ACTIVE'") == 2
    assert await delete(mesh, root) == PAGE + 2
    assert await left(remains, mesh.tenant) == 0
    await make_due(remains.dsn, mesh.tenant)
    async with components_of(mesh.settings) as components:  # For what the call left.
        await make_job_worker(components, mesh.settings).run_due(DELETE_SESSION)
    stored = await remains.of(mesh.tenant)
    assert (stored["runs"], stored["transcripts"], stored["entries"]) == (0, 0, 0)
    assert await remains.count(mesh.tenant, "session.run_queue where true") == 0
    assert await remains.count(mesh.tenant, f"session.jobs where kind = '{DELETE_SESSION}'") == 0


async def test_KillSession__large_family_is_ended_in_pages_and_a_repeat_ends_the_rest(
    mesh: Mesh, remains: Remains
) -> None:
    """A transaction for all of them would take longer than a caller waits."""
    root = (await mesh.spawn()).session_id
    held = await mesh.claim(root)
    parents = await copies(remains, mesh.tenant, root, 3, "aa", parents=[root], ended_for=None)
    await copies(remains, mesh.tenant, root, 139, "bb", parents=parents, ended_for=None)
    living = []
    async with components_of(mesh.settings) as components:
        for crash_at in (2, 4, 5):  # In the first page, behind it, and in the second.
            with impersonate(mesh.tenant), pytest.raises(Crash):
                await crashing(components, Steps(crash_at)).deps.killer.kill(mesh.tenant, root, None)
            living.append(await remains.count(mesh.tenant, "session.sessions where state = 'ACTIVE'"))
    assert living == [421, 221, 21]
    assert (await mesh.get(root)).latest_run.state == session_pb2.RUN_STATE_KILLED
    for killed_now in (0, 0):
        answer = await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=root))
        assert answer.killed_run_count == killed_now
    assert await remains.count(mesh.tenant, "session.sessions where state = 'ACTIVE'") == 0
    async with caller_at(mesh.settings.transcript_target, "transcript") as transcript:
        with pytest.raises(MeshError) as caught:
            await draft(transcript, held, "too late")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST


async def test_KillSession__a_run_ends_its_own_large_family(mesh: Mesh, remains: Remains) -> None:
    """It is killed itself with the first page."""
    root = (await mesh.spawn()).session_id
    held = await mesh.claim(root)
    await copies(remains, mesh.tenant, root, 250, "aa", parents=[root], ended_for=None)
    answer = await mesh.run(held, mesh.sessions.KillSession, pb.KillSessionRequest(session_id=root))
    assert answer.killed_run_count == 1
    assert await remains.count(mesh.tenant, "session.sessions where state = 'ACTIVE'") == 0


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Takes every connection, and never says a word."""
    over = asyncio.Event()

    async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        over.set()


async def test_DeleteSession__answers_before_its_deadline_where_peers_take_longer(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains
) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    async with black_hole() as nowhere, open_mesh(elsewhere={"transcript": nowhere}) as slow:
        slow.tenant = mesh.tenant
        assert await delete(slow, session.session_id, timeout=2.0) == 1
    with pytest.raises(MeshError) as caught:
        await mesh.get(session.session_id)
    assert caught.value.reason is Reason.NOT_FOUND
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert set((await remains.of(mesh.tenant)).values()) == {0}


async def test_retention_deletes_what_is_due_behind_any_number_of_parents_that_wait_for_their_children(
    mesh: Mesh, remains: Remains
) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(delete_after=DAY))
    original = (await own.spawn()).session_id
    await own.client(own.sessions.KillSession, pb.KillSessionRequest(session_id=original))
    waiting = await copies(
        remains, own.tenant, original, 450, "aa", parents=[""], ended_for=timedelta(days=3)
    )
    await copies(remains, own.tenant, original, 1, "bb", parents=waiting, ended_for=None)
    await copies(remains, own.tenant, original, 3, "cc", parents=[""])
    before = await left(remains, own.tenant)
    async with components_of(own.settings) as components:
        assert await make_sweeper(components, own.settings).retention.retain(own.tenant) == 3
    assert await left(remains, own.tenant) == before - 3
