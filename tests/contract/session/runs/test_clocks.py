"""With wrong clocks of processes, the database's clock decides order and time left."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb

from tests.support.session.calls import fail, send
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains


async def make_id_late(remains: Remains, run: session_pb2.Run) -> None:
    """Gives the run an id as a process makes it whose clock is a century ahead."""
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        changed = f"run_7{run.run_id[5:]}"
        await link.execute("update session.runs set run_id = %s where run_id = %s", (changed, run.run_id))


async def test_latest_run_is_the_one_that_was_queued_last_whatever_its_id_says(
    mesh: Mesh, remains: Remains
) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    await fail(mesh, held)
    await make_id_late(remains, held.run)
    second = await send(mesh, session.session_id)
    assert (await mesh.get(session.session_id)).latest_run.run_id == second.run_id
    page = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())
    assert [one.latest_run.run_id for one in page.sessions] == [second.run_id]
    wait = pb.WaitSessionRequest(session_id=session.session_id, timeout=Duration(nanos=1_000_000))
    assert not (await mesh.client(mesh.sessions.WaitSession, wait)).done


async def test_ClaimRuns__time_left_is_that_of_the_deadline_also_after_a_hand_back(mesh: Mesh) -> None:
    session = await mesh.spawn(run_timeout=Duration(seconds=1_000))
    held = await mesh.claim(session.session_id)
    assert 900 < held.time_left.seconds <= 1_000
    # Database and test share a machine.
    left = held.deadline_time.ToDatetime(UTC) - datetime.now(UTC)
    assert abs(left - held.time_left.ToTimedelta()).total_seconds() < 100
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    again = await mesh.claim(session.session_id)
    assert 0 < again.time_left.ToTimedelta().total_seconds() < held.time_left.ToTimedelta().total_seconds()


@pytest.mark.parametrize("page_size", [1, 2, 50])
async def test_ListSessions__run_sees_its_own_session_and_its_descendants_in_pages(
    mesh: Mesh, page_size: int
) -> None:
    stranger = await mesh.spawn()
    root = await mesh.spawn()
    held = await mesh.claim(root.session_id)
    child = await mesh.spawn_as(held)
    grandchild = await mesh.spawn_as(await mesh.claim(child.session_id))

    async def listed(**fields: Any) -> list[str]:
        found: list[str] = []
        token = ""
        while True:
            request = pb.ListSessionsRequest(page_size=page_size, page_token=token, **fields)
            page = await mesh.run(held, mesh.sessions.ListSessions, request)
            found += [session.session_id for session in page.sessions]
            token = page.next_page_token
            if not token:
                return found

    family = [grandchild.session_id, child.session_id, root.session_id]
    assert await listed() == sorted(family, reverse=True)
    assert await listed(filter=f"parent_session_id = {root.session_id}") == [child.session_id]
    assert await listed(filter=f"parent_session_id = {child.session_id}") == [grandchild.session_id]
    other = await mesh.spawn(parent_session_id=stranger.session_id, request_id=uuid4().hex)
    assert await listed(filter=f"parent_session_id = {stranger.session_id}") == []
    assert other.session_id not in await listed(include_archived=True)
