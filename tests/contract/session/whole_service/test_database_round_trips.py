"""Round trips to PostgreSQL of the calls of a run, in all services together.

The client of a round trip waits for what it sent: in a pipeline, for the rows of a statement or for
the end. Each count is the least of several calls: jobs in
the background, such as the delivery of an event, and cached policies that have expired add to some
of them.
"""

import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from psycopg.conninfo import make_conninfo
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, Tenant
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.attachment_blob.uploads import begin, chunks, finish, spec_of
from tests.support.links import to_postgres
from tests.support.model_router.fixtures import Router, open_world
from tests.support.model_router.provider import chat, sse
from tests.support.round_trips import RoundTrips, open_counting_link
from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import another, kill
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.waiting import eventually

ROUNDS = 6
SERVICES = ("session", "attachment_blob", "transcript", "hook", "model_router")
T = TypeVar("T")

ROUND_TRIPS = {
    "spawn": {"session": 3, "transcript": 2},
    "spawn with a file": {"session": 3, "attachment_blob": 3, "transcript": 3},
    "claim": {"session": 3},
    "acquire": {"transcript": 1},
    "append": {"transcript": 1},
    "assemble": {"transcript": 4},
    "finalize": {"session": 4, "transcript": 2},
    "heartbeat": {"session": 1},
    "send": {"session": 8},
    "spawn by a run": {"session": 4, "transcript": 3},
    "release": {"session": 4},
    "fail": {"session": 3},
    "fail of a child": {"session": 3},
    "list inbox": {"session": 1},
    "acknowledge": {"session": 4},
    "kill": {"session": 7, "transcript": 2},
    "watch": {"session": 4},
    "create tenant": {"session": 9, "attachment_blob": 10, "transcript": 10, "hook": 7, "model_router": 7},
    "update tenant": {"session": 8, "attachment_blob": 10, "transcript": 10, "hook": 7, "model_router": 7},
    "get tenant": {"session": 3},
    "put agent": {"session": 6},
    "delete tenant": {"session": 12},
    "upload": {"attachment_blob": 32},
    "generate": {"model_router": 2},
}


class Counted:
    """The mesh, whose services reach their databases through counting links."""

    def __init__(
        self, mesh: Mesh, transcript: Peer, blobs: Peer, router: Router, links: dict[str, RoundTrips]
    ) -> None:
        self.mesh, self.router = mesh, router
        self._transcript, self._blobs, self._links = transcript, blobs, links

    async def round_trips(self, call: Callable[[], Awaitable[T]]) -> tuple[T, Counter[str]]:
        """Return the answer, and the round trips of each service during the call."""
        before = {name: link.count for name, link in self._links.items()}
        answer = await call()
        return answer, Counter({name: link.count - before[name] for name, link in self._links.items()})

    async def quiet(self) -> None:
        """Wait until what earlier calls left to the background is done."""
        seen: deque[int] = deque(maxlen=6)

        def is_quiet() -> bool:
            seen.append(sum(link.count for link in self._links.values()))
            return len(seen) == seen.maxlen and len(set(seen)) == 1

        await eventually(is_quiet)

    async def of_run(self, claimed: run_pb.ClaimedRun, name: str, request: object) -> Any:
        """Call the transcript service with the token of the run."""
        call = getattr(TranscriptServiceStub(self._transcript.channel), name)
        with use_token(claimed.run_token):
            return await self._transcript.unary(call, request, timeout_seconds=60.0)

    async def upload(self, data: bytes) -> None:
        """Upload a file of one chunk in one stream."""

        async def messages() -> AsyncIterator[blob_pb.UploadFileRequest]:
            for message in (begin(spec_of(data)), *chunks(data), finish()):
                yield message

        call = AttachmentBlobServiceStub(self._blobs.channel).UploadFile
        with use_token(client_tokens(self.mesh.keys).client_token(self.mesh.tenant, "test", 60)):
            answer = await self._blobs.unary(call, messages(), timeout_seconds=60.0)
        assert answer.upload.state == upload_pb2.UPLOAD_STATE_COMPLETE

    async def watch(self, session_id: str) -> None:
        """Read all events of a session that has ended."""
        request = session_pb.WatchSessionRequest(session_id=session_id)
        with use_token(client_tokens(self.mesh.keys).client_token(self.mesh.tenant, "test", 60)):
            stream = self.mesh.peer.stream(self.mesh.sessions.WatchSession, request, timeout_seconds=60)
            assert [answer.session_event async for answer in stream]


@pytest.fixture(scope="module")
async def counted(
    migrated: dict[str, ServiceDsn],
    open_peers: OpenPeers,
    open_mesh: OpenMesh,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Counted]:
    async with AsyncExitStack() as exits:
        links = {
            name: await exits.enter_async_context(open_counting_link(to_postgres(migrated[name].app)))
            for name in SERVICES
        }

        def url_of(snake: str) -> dict[str, str]:
            host, _, port = links[snake].target.partition(":")
            return {
                "database_url": make_conninfo(migrated[snake].app, host=host, port=port, sslmode="disable")
            }

        targets = await exits.enter_async_context(open_peers(url_of))
        mesh = await exits.enter_async_context(open_mesh(elsewhere=targets, **url_of("session")))
        transcript = await exits.enter_async_context(caller_at(targets["transcript"], "transcript"))
        blobs = await exits.enter_async_context(caller_at(targets["attachment-blob"], "attachment-blob"))
        # The router of the mesh has no provider that answers.
        dsn = replace(migrated["model_router"], app=url_of("model_router")["database_url"])
        world = await exits.enter_async_context(open_world(dsn, mesh.keys, tmp_path_factory.mktemp("router")))
        world.provider.on("one", sse(*chat("Blue.")))
        router = await world.router(tenant=mesh.tenant, is_prepared=False)
        await mesh.create_tenant()
        yield Counted(mesh, transcript, blobs, router, links)


def _entry(text: str) -> entry_pb2.EntryBody:
    block = message_pb2.ContentBlock(text=message_pb2.Text(text=text))
    message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=[block], model="nowhere/one")
    return entry_pb2.EntryBody(message=message)


class Rounds:
    """The round trips of each operation, by its name."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted
        self._found: dict[str, list[Counter[str]]] = {}

    async def count(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call and keep its round trips."""
        answer, counts = await self.counted.round_trips(call)
        self._found.setdefault(name, []).append(counts)
        return answer

    def least(self) -> dict[str, dict[str, int]]:
        """Return the least of each operation, for the services that it reaches."""
        return {
            name: {service: least for service in SERVICES if (least := min(each[service] for each in counts))}
            for name, counts in self._found.items()
        }


async def _answered(rounds: Rounds, *, with_file: bool) -> None:
    """Spawn, claim, append, assemble and finalize."""
    counted, mesh = rounds.counted, rounds.counted.mesh
    await counted.quiet()
    attachments = [attachment(content=uuid.uuid4().hex)] if with_file else []
    name = "spawn with a file" if with_file else "spawn"
    await rounds.count(name, lambda: mesh.spawn(attachments=attachments))
    [claimed] = await rounds.count("claim", mesh.claim_any)
    session_id = claimed.session.session_id
    claim_of_run = transcript_pb.WriterClaim(run_id=claimed.run.run_id, epoch=claimed.run.epoch)
    acquire = transcript_pb.AcquireWriterRequest(session_id=session_id, claim=claim_of_run)
    await rounds.count("acquire", lambda: counted.of_run(claimed, "AcquireWriter", acquire))
    append = transcript_pb.AppendEntriesRequest(
        session_id=session_id, claim=claim_of_run, request_id=uuid.uuid4().hex, entries=[_entry("Done.")]
    )
    appended = await rounds.count("append", lambda: counted.of_run(claimed, "AppendEntries", append))
    assemble = transcript_pb.AssembleContextRequest(session_id=session_id, token_budget=10_000)
    await rounds.count("assemble", lambda: counted.of_run(claimed, "AssembleContext", assemble))
    finalize = run_pb.FinalizeRunRequest(
        epoch=claimed.run.epoch, draft_entry_id=appended.entries[-1].entry_id, draft_text="Done."
    )
    await rounds.count("finalize", lambda: mesh.run(claimed, mesh.runs.FinalizeRun, finalize))


async def _failed(rounds: Rounds) -> None:
    """Keep a run, send it a message, let it spawn, release it and fail it."""
    counted, mesh = rounds.counted, rounds.counted.mesh
    session_id = (await mesh.spawn()).session_id
    held = await mesh.claim(session_id)
    heartbeat = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    send = session_pb.SendMessageRequest(session_id=session_id, request_id=uuid.uuid4().hex, text="Hurry.")
    release = run_pb.ReleaseRunRequest(epoch=held.run.epoch)
    await counted.quiet()
    await rounds.count("heartbeat", lambda: mesh.run(held, mesh.runs.HeartbeatRun, heartbeat))
    await rounds.count("send", lambda: mesh.client(mesh.sessions.SendMessage, send))
    await rounds.count("spawn by a run", lambda: mesh.spawn_as(held))
    await counted.quiet()
    await rounds.count("release", lambda: mesh.run(held, mesh.runs.ReleaseRun, release))
    runs = {run.session.session_id: run for run in await mesh.claim_any(limit=2)}
    assert len(runs) == 2, "the run and its child"
    await counted.quiet()
    parent, [child] = runs.pop(session_id), runs.values()
    for name, failing in (("fail of a child", child), ("fail", parent)):
        fail = run_pb.FailRunRequest(epoch=failing.run.epoch, reason=reason_pb2.REASON_NO_PROGRESS)
        await rounds.count(name, partial(mesh.run, failing, mesh.runs.FailRun, fail))


async def _killed(rounds: Rounds) -> None:
    """Read and acknowledge the messages of a run, kill it, and read its events."""
    counted, mesh = rounds.counted, rounds.counted.mesh
    session_id = (await mesh.spawn()).session_id
    held = await mesh.claim(session_id)
    send = session_pb.SendMessageRequest(session_id=session_id, request_id=uuid.uuid4().hex, text="Hurry.")
    await mesh.client(mesh.sessions.SendMessage, send)
    await counted.quiet()
    listing = run_pb.ListInboxRequest()
    inbox = await rounds.count("list inbox", lambda: mesh.run(held, mesh.runs.ListInbox, listing))
    read = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=[inbox.messages[0].key])
    await rounds.count("acknowledge", lambda: mesh.run(held, mesh.runs.AcknowledgeInbox, read))
    assert await rounds.count("kill", lambda: kill(mesh, session_id)) == 1
    await counted.quiet()
    await rounds.count("watch", lambda: counted.watch(session_id))


async def _administered(rounds: Rounds) -> None:
    """Create, update, read and delete a tenant that has an agent."""
    counted, mesh = rounds.counted, another(rounds.counted.mesh)
    await counted.quiet()
    await rounds.count("create tenant", mesh.create_tenant)
    await rounds.count("get tenant", mesh.tenant_state)
    renamed = FieldMask(paths=["display_name"])
    tenant = Tenant(tenant_id=mesh.tenant, display_name="Renamed")
    update = tenant_pb.UpdateTenantRequest(tenant=tenant, update_mask=renamed)
    await rounds.count("update tenant", lambda: mesh.operator("UpdateTenant", update))
    agent = AgentProfile(agent_id="writer", system_prompt="Write.", models=["nowhere/one"])
    await rounds.count("put agent", lambda: mesh.put_agent(agent))
    await counted.quiet()
    await rounds.count("delete tenant", mesh.delete_tenant)


async def _fed(rounds: Rounds) -> None:
    """Upload a file, and call a model."""
    await rounds.counted.quiet()
    await rounds.count("upload", lambda: rounds.counted.upload(uuid.uuid4().bytes))
    answer = await rounds.count("generate", rounds.counted.router.generate)
    assert answer.text == "Blue."


async def test_round_trips_of_each_operation(counted: Counted, empty_queue: None) -> None:
    rounds = Rounds(counted)
    for number in range(2 * ROUNDS):
        await _answered(rounds, with_file=number % 2 == 1)
    for _ in range(ROUNDS):
        await _failed(rounds)
        await _killed(rounds)
        await _fed(rounds)
        await _administered(rounds)
    least = rounds.least()
    assert least.keys() == ROUND_TRIPS.keys()
    more = {
        name: (found, ROUND_TRIPS[name]) for name, found in least.items() if is_more(found, ROUND_TRIPS[name])
    }
    assert more == {}


def is_more(found: Mapping[str, int], stated: Mapping[str, int]) -> bool:
    """Return whether a service has made more round trips than are stated for it.

    It can make fewer: what it has read lately it does not read again.
    """
    return any(count > stated.get(service, 0) for service, count in found.items())
