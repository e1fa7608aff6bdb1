"""A page token is good at every replica, for a day, and no other than the service makes one."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import page_token
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.page_keys import page_key_from
from tests.support.session.harness import Mesh, OpenMesh


async def _page(mesh: Mesh, token: str = "") -> pb.ListSessionsResponse:
    request = pb.ListSessionsRequest(page_size=1, page_token=token)
    response: pb.ListSessionsResponse = await mesh.client(mesh.sessions.ListSessions, request)
    return response


def _made(mesh: Mesh, service: str, session_id: str, age: timedelta = timedelta()) -> str:
    """Return a token of the page after this session, signed with the key of the service."""
    with page_key_from(mesh.keys, service):
        request = pb.ListSessionsRequest()
        return page_token([session_id], request, mesh.tenant, "", clock=lambda: utc_now() - age)


async def _refusal(mesh: Mesh, token: str) -> str:
    """Return the text of the refusal of the page."""
    with pytest.raises(MeshError) as caught:
        await _page(mesh, token)
    assert (caught.value.status, caught.value.reason) == (Status.INVALID_ARGUMENT, Reason.INVALID_REQUEST)
    [violation] = caught.value.violations
    assert violation.field == "page_token"
    return violation.description


async def test_ListSessions__goes_on_at_another_replica(mesh: Mesh, open_mesh: OpenMesh) -> None:
    ids = [(await mesh.spawn()).session_id for _ in range(2)]
    first = await _page(mesh)
    async with open_mesh() as replica:
        second = await _page(replace(replica, tenant=mesh.tenant), first.next_page_token)
    assert [one.session_id for page in (first, second) for one in page.sessions] == ids[::-1]


async def test_ListSessions__a_token_expires_after_a_day(mesh: Mesh) -> None:
    ids = [(await mesh.spawn()).session_id for _ in range(2)]
    known = _made(mesh, "session", ids[1], timedelta(hours=23))
    assert [one.session_id for one in (await _page(mesh, known)).sessions] == [ids[0]]
    said = await _refusal(mesh, _made(mesh, "session", ids[1], timedelta(hours=25)))
    assert said == "has expired after a day; begin the list again, with an empty token"


async def test_ListSessions__a_token_of_another_key_is_refused(mesh: Mesh) -> None:
    spawned = await mesh.spawn()
    assert "no token" in await _refusal(mesh, _made(mesh, "transcript", spawned.session_id))


async def test_a_service_without_a_signing_key_does_not_start(open_mesh: OpenMesh) -> None:
    with pytest.raises(SystemExit, match="session: signing_key_file is needed"):
        async with open_mesh(signing_key_file=None):
            pass
