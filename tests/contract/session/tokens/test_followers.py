"""Every service refuses the tokens of ended runs and revoked tokens soon after, also after outages.

Where a test has the fixture `no_polls`, only the push can have done it: the replica of session reads
its table again after an hour, and its streams say something without news after an hour.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_hook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceStub
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.archive_service_pb2_grpc import ArchiveServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.operations import revocation_feed

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import fail, kill
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.revoking import HOUR, id_of, revoke
from tests.support.waiting import eventually

Call = Callable[[Peer, str], Any]
OpenServices = Callable[..., Any]


def _read_session(peer: Peer, session_id: str) -> Any:
    request = session_pb.GetSessionRequest(session_id=session_id)
    return peer.unary(SessionServiceStub(peer.channel).GetSession, request, timeout_seconds=60)


def _read_entries(peer: Peer, session_id: str) -> Any:
    request = transcript_pb.ListEntriesRequest(session_id=session_id)
    return peer.unary(TranscriptServiceStub(peer.channel).ListEntries, request, timeout_seconds=60)


def _read_upload(peer: Peer, session_id: str) -> Any:
    request = blob_pb.GetUploadRequest(upload_id="upl_" + "0" * 26)
    return peer.unary(AttachmentBlobServiceStub(peer.channel).GetUpload, request, timeout_seconds=60)


def _list_models(peer: Peer, session_id: str) -> Any:
    return peer.unary(
        ModelRouterServiceStub(peer.channel).ListModels, router_pb.ListModelsRequest(), timeout_seconds=60
    )


def _list_hooks(peer: Peer, session_id: str) -> Any:
    request = run_hook_pb.ListActiveHooksRequest()
    return peer.unary(RunHookServiceStub(peer.channel).ListActiveHooks, request, timeout_seconds=60)


def _list_plugins(peer: Peer, session_id: str) -> Any:
    return peer.unary(
        HookServiceStub(peer.channel).ListPlugins, hook_pb.ListPluginsRequest(), timeout_seconds=60
    )


OF_A_RUN: dict[str, Call] = {
    "session": _read_session,
    "transcript": _read_entries,
    "attachment-blob": _read_upload,
    "model-router": _list_models,
    "hook": _list_hooks,
}
OF_A_CLIENT = {**OF_A_RUN, "hook": _list_plugins}


@dataclass
class Services:
    """The session service, and channels to all five."""

    mesh: Mesh
    peers: dict[str, Peer]

    async def reasons(self, calls: dict[str, Call], token: str, session_id: str) -> dict[str, Reason | None]:
        """Call each service with the token; return the reasons of the refusals."""

        async def reason_of(service: str) -> Reason | None:
            try:
                with use_token(token):
                    await calls[service](self.peers[service], session_id)
            except MeshError as error:
                return error.reason
            return None

        return dict(zip(calls, await asyncio.gather(*map(reason_of, calls)), strict=True))

    async def until_refused(self, calls: dict[str, Call], token: str, session_id: str) -> None:
        """Wait until every service refuses the token as revoked."""

        async def refused() -> bool:
            reasons = await self.reasons(calls, token, session_id)
            return set(reasons.values()) == {Reason.TOKEN_REVOKED}

        await eventually(refused)  # Its time is far below what `no_polls` sets.


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what repairs a lost push: without the push, nothing is refused within an hour."""
    for name in ("_POLL_SECONDS", "_ALIVE_SECONDS", "_STREAM_SECONDS"):
        monkeypatch.setattr(revocation_feed, name, 3600.0)


@pytest.fixture
def open_services(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn]
) -> OpenServices:
    """Serve all five services; the session service on this port."""

    @asynccontextmanager
    async def opened(port: int, wait_seconds: float = 0.0) -> AsyncIterator[dict[str, str]]:
        async with open_peers(
            lambda snake: {"database_url": migrated[snake].app},
            session_target=f"{LOOPBACK}:{port}",
            revocations_wait_seconds=wait_seconds,
        ) as targets:
            yield targets

    return opened


@asynccontextmanager
async def callers(mesh: Mesh, targets: dict[str, str]) -> AsyncIterator[Services]:
    async with (
        caller_at(targets["transcript"], "transcript") as transcript,
        caller_at(targets["attachment-blob"], "attachment-blob") as blob,
        caller_at(targets["model-router"], "model-router") as router,
        caller_at(targets["hook"], "hook") as hook,
    ):
        peers = {"transcript": transcript, "attachment-blob": blob, "model-router": router, "hook": hook}
        yield Services(mesh, {"session": mesh.peer, **peers})


@pytest.fixture
async def services(open_services: OpenServices, open_mesh: OpenMesh) -> AsyncIterator[Services]:
    """All five services, which know the revocations."""
    (port,) = free_ports(1)
    async with (
        open_services(port) as targets,
        open_mesh(elsewhere=targets, port=port) as mesh,
        callers(mesh, targets) as opened,
    ):
        await mesh.create_tenant()
        yield opened


async def claimed(mesh: Mesh) -> run_pb.ClaimedRun:
    return await mesh.claim((await mesh.spawn()).session_id)


@pytest.mark.parametrize("end", ["killed", "deleted", "failed"])
@pytest.mark.usefixtures("no_polls")
async def test_token_of_an_ended_run_is_refused_by_every_service(services: Services, end: str) -> None:
    mesh = services.mesh
    held, other = await claimed(mesh), await claimed(mesh)
    session_id = held.session.session_id
    before = await services.reasons(OF_A_RUN, held.run_token, session_id)
    assert Reason.TOKEN_REVOKED not in before.values()
    match end:
        case "killed":
            await kill(mesh, session_id)
        case "deleted":
            await mesh.client(
                mesh.sessions.DeleteSession, session_pb.DeleteSessionRequest(session_id=session_id)
            )
        case "failed":
            await fail(mesh, held)
    await services.until_refused(OF_A_RUN, held.run_token, session_id)
    left = await services.reasons(OF_A_RUN, other.run_token, other.session.session_id)
    assert Reason.TOKEN_REVOKED not in left.values()


@pytest.mark.usefixtures("no_polls")
async def test_revoked_client_token_is_refused_by_every_service(services: Services) -> None:
    mesh, tokens = services.mesh, client_tokens(services.mesh.keys)
    session_id = (await mesh.spawn()).session_id
    stolen, own = (tokens.client_token(mesh.tenant, name, HOUR) for name in ("thief", "operator"))
    assert Reason.TOKEN_REVOKED not in (await services.reasons(OF_A_CLIENT, stolen, session_id)).values()
    await revoke(mesh, own, token_id=id_of(stolen))
    await services.until_refused(OF_A_CLIENT, stolen, session_id)
    assert Reason.TOKEN_REVOKED not in (await services.reasons(OF_A_CLIENT, own, session_id)).values()


@pytest.mark.usefixtures("no_polls")
async def test_stream_of_new_entries_ends_when_its_run_is_killed(services: Services) -> None:
    mesh, transcript = services.mesh, services.peers["transcript"]
    held = await claimed(mesh)
    request = transcript_pb.FollowEntriesRequest(session_id=held.session.session_id)
    stub = TranscriptServiceStub(transcript.channel)
    has_begun = False

    async def follow() -> None:
        nonlocal has_begun
        async for _ in transcript.stream(stub.FollowEntries, request, timeout_seconds=60):
            if not has_begun:
                has_begun = True
                await kill(mesh, held.session.session_id)

    with use_token(held.run_token), pytest.raises(MeshError) as ended:
        await follow()
    assert has_begun
    assert ended.value.reason is Reason.TOKEN_REVOKED


@pytest.mark.usefixtures("no_polls")
async def test_upload_that_is_open_ends_when_its_token_is_revoked(services: Services) -> None:
    mesh, tokens = services.mesh, client_tokens(services.mesh.keys)
    transcript = services.peers["transcript"]
    stolen, own = (tokens.client_token(mesh.tenant, name, HOUR) for name in ("thief", "operator"))
    session_id, has_begun = new_id(IdKind.SESSION), asyncio.Event()

    async def pieces() -> AsyncIterator[archive_pb.ImportTranscriptRequest]:
        yield archive_pb.ImportTranscriptRequest(spec=archive_pb.ImportSpec(session_id=session_id))
        has_begun.set()
        await asyncio.Event().wait()

    async def upload() -> None:
        stub: Any = ArchiveServiceStub(transcript.channel)
        with use_token(stolen):
            await transcript.unary(stub.ImportTranscript, pieces(), timeout_seconds=60)

    uploading = asyncio.create_task(upload())
    await has_begun.wait()
    await revoke(mesh, own, token_id=id_of(stolen))
    with pytest.raises(MeshError) as ended:
        await uploading
    assert ended.value.reason is Reason.TOKEN_REVOKED


async def test_services_keep_what_they_know_while_session_is_away_and_then_catch_up(
    open_services: OpenServices, open_mesh: OpenMesh
) -> None:
    (port,) = free_ports(1)
    async with open_services(port) as targets:
        async with open_mesh(elsewhere=targets, port=port) as mesh, callers(mesh, targets) as services:
            await mesh.create_tenant()
            first, second = await claimed(mesh), await claimed(mesh)
            await kill(mesh, first.session.session_id)
            await services.until_refused(OF_A_RUN, first.run_token, first.session.session_id)
            tenant = mesh.tenant
        others = {name: call for name, call in OF_A_RUN.items() if name != "session"}
        async with open_mesh(elsewhere=targets) as elsewhere, callers(elsewhere, targets) as services:
            elsewhere.tenant = tenant
            away = await services.reasons(others, first.run_token, first.session.session_id)
            assert set(away.values()) == {Reason.TOKEN_REVOKED}
            await kill(elsewhere, second.session.session_id)
        async with open_mesh(elsewhere=targets, port=port) as mesh, callers(mesh, targets) as services:
            await services.until_refused(OF_A_RUN, second.run_token, second.session.session_id)


async def test_service_that_starts_later_refuses_from_its_first_call_on(
    open_services: OpenServices, open_mesh: OpenMesh, peers: dict[str, str]
) -> None:
    (port,) = free_ports(1)
    async with open_mesh(port=port) as mesh:
        await mesh.create_tenant()
        held = await claimed(mesh)
        await kill(mesh, held.session.session_id)
        async with open_services(port, 30.0) as targets, callers(mesh, targets) as services:
            reasons = await services.reasons(OF_A_RUN, held.run_token, held.session.session_id)
    assert {name for name, reason in reasons.items() if reason is not Reason.TOKEN_REVOKED} <= {"session"}


async def test_service_that_starts_while_session_is_away_serves_once_it_knows_the_revocations(
    open_services: OpenServices, open_mesh: OpenMesh
) -> None:
    (port,) = free_ports(1)
    async with open_mesh(port=port) as mesh:
        await mesh.create_tenant()
        held = await claimed(mesh)
        await kill(mesh, held.session.session_id)
    back, attempts = asyncio.Event(), 0

    def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async def first_reasons() -> dict[str, Reason | None]:
        async with open_services(port, 60.0) as targets:
            await back.wait()
            async with callers(mesh, targets) as services:
                return await services.reasons(OF_A_RUN, held.run_token, held.session.session_id)

    async with asyncio.TaskGroup() as group:
        async with await asyncio.start_server(refuse, LOOPBACK, port):
            starting = group.create_task(first_reasons())

            async def has_tried() -> bool:
                return attempts >= 3

            await eventually(has_tried)
        async with open_mesh(port=port) as mesh:
            back.set()
            reasons = await starting
    assert {name for name, reason in reasons.items() if reason is not Reason.TOKEN_REVOKED} <= {"session"}


async def test_service_serves_without_the_revocations_after_a_limited_time(
    open_services: OpenServices, mesh: Mesh
) -> None:
    (port,) = free_ports(1)
    held = await claimed(mesh)
    async with open_services(port, 0.2) as targets, callers(mesh, targets) as services:
        reasons = await services.reasons(OF_A_RUN, held.run_token, held.session.session_id)
    assert Reason.TOKEN_REVOKED not in reasons.values()
