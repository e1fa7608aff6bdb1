"""Metadata of sessions: what the caller of a spawn gave, and nobody else sees or changes."""

from uuid import uuid4

import psycopg
import pytest
from google.protobuf.json_format import MessageToJson
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains

METADATA = {"ticket": "17", "a.b-c_d": "ä" * 128, "empty": ""}


async def refusal(mesh: Mesh, request_id: str = "", **fields: object) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(request_id=request_id or uuid4().hex, **fields)
    return caught.value


async def test_SpawnSession__metadata_comes_back_with_the_session(mesh: Mesh) -> None:
    spawned = await mesh.spawn(metadata=METADATA)
    assert dict(spawned.metadata) == METADATA
    assert dict((await mesh.get(spawned.session_id)).metadata) == METADATA
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())
    assert [dict(session.metadata) for session in listed.sessions] == [METADATA]
    held = await mesh.claim(spawned.session_id)
    assert dict(held.session.metadata) == METADATA
    child = await mesh.spawn_as(held)
    assert not child.metadata
    again = await mesh.spawn_as(held, metadata={"of": "a child"})
    assert dict(again.metadata) == {"of": "a child"}


async def test_SpawnSession__other_metadata_is_another_payload(mesh: Mesh) -> None:
    request_id = uuid4().hex
    spawned = await mesh.spawn(request_id=request_id, metadata=METADATA)
    backwards = dict(reversed(METADATA.items()))
    assert (await mesh.spawn(request_id=request_id, metadata=backwards)).session_id == spawned.session_id
    for other in ({}, {**METADATA, "ticket": "18"}, {"ticket": "17"}):
        assert (await refusal(mesh, request_id, metadata=other)).reason is Reason.REQUEST_ID_REUSED


REFUSED = {
    "seventeen pairs": ({f"k{number}": "" for number in range(17)}, "metadata"),
    "an empty key": ({"": "1"}, "metadata[]"),
    "an upper-case key": ({"Ticket": "1"}, "metadata[]"),
    "a key that begins with a digit": ({"1a": "1"}, "metadata[]"),
    "a long key": ({"a" * 64: "1"}, "metadata[]"),
    "a long value": ({"a": "ä" * 128 + "x"}, "metadata[]"),
    "NUL": ({"a": "\0"}, "metadata[]"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_SpawnSession__metadata_out_of_bounds(mesh: Mesh, name: str) -> None:
    metadata, field = REFUSED[name]
    error = await refusal(mesh, metadata=metadata)
    assert (error.reason, [one.field for one in error.violations]) == (Reason.INVALID_REQUEST, [field])
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())
    assert list(listed.sessions) == []


async def test_DeleteSession__no_metadata_is_left(mesh: Mesh, remains: Remains) -> None:
    spawned = await mesh.spawn(metadata={"ticket": "a-text-of-a-user"})
    assert "a-text-of-a-user" in MessageToJson(spawned)
    await mesh.client(mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=spawned.session_id))
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        found = await link.execute(
            "select s::text from session.sessions s where session_id = %s", (spawned.session_id,)
        )
        [(row,)] = await found.fetchall()
    assert spawned.session_id in row
    assert "a-text-of-a-user" not in row


async def test_ListSessions__large_metadata_comes_in_parts(mesh: Mesh, remains: Remains) -> None:
    spawned = await mesh.spawn(metadata={f"k{number:02}" + "k" * 60: "x" * 256 for number in range(16)})
    copies = (
        "insert into session.sessions select (jsonb_populate_record(s, jsonb_build_object('session_id',"
        " substr(session_id, 1, 25) || lpad(n::text, 5, '0'), 'request_id', 'r' || n))).*"
        " from session.sessions s, generate_series(1, 800) n where tenant_id = %s"
    )
    failed_runs = (
        "insert into session.runs (tenant_id, run_id, session_id, position, state, deadline_time, error_message)"
        " select tenant_id, 'run' || substr(session_id, 4), session_id, 2, 'FAILED', now(), repeat('y', 4096)"
        " from session.sessions where tenant_id = %s and session_id <> %s"
    )
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute(copies, (mesh.tenant,))
        await link.execute(failed_runs, (mesh.tenant, spawned.session_id))
    request, found = pb.ListSessionsRequest(page_size=500), list[str]()
    while not found or request.page_token:
        page = await mesh.client(mesh.sessions.ListSessions, request)
        assert page.ByteSize() < 4 * 1024 * 1024
        found += [session.session_id for session in page.sessions]
        request.page_token = page.next_page_token
    assert len(found) == len(set(found)) == 801
    assert spawned.session_id in found
