"""Round trips to PostgreSQL of the calls of a run, in all services together.

A round trip ends with the message ReadyForQuery. Each count is the least of several calls: jobs in
the background, such as the delivery of an event, add to some of them.
"""

import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.links import to_postgres
from tests.support.round_trips import RoundTrips, open_counting_link
from tests.support.serving import caller_at
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.waiting import eventually

ROUNDS = 6
SERVICES = ("session", "attachment_blob", "transcript", "hook", "model_router")


# A cached policy that has expired is one more in `transcript`: the counts include it.
MOST = {
    "spawn": {"session": 3, "transcript": 3},
    "spawn with a file": {"session": 4, "attachment_blob": 3, "transcript": 3},
    "claim": {"session": 2},
    "acquire": {"transcript": 1},
    "append": {"transcript": 2},
    "assemble": {"transcript": 5},
    "finalize": {"session": 3, "transcript": 2},
}


class Counted:
    """The mesh, whose services reach their databases through counting links."""

    def __init__(self, mesh: Mesh, transcript: Peer, links: dict[str, RoundTrips]) -> None:
        self.mesh, self._transcript, self._links = mesh, transcript, links

    async def round_trips(self, call: Callable[[], Awaitable[object]]) -> Counter[str]:
        """Return the round trips of each service during the call."""
        before = {name: link.count for name, link in self._links.items()}
        await call()
        return Counter({name: link.count - before[name] for name, link in self._links.items()})

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
            return await self._transcript.unary(call, request, timeout_seconds=20.0)


@pytest.fixture(scope="module")
async def counted(
    migrated: dict[str, ServiceDsn], open_peers: OpenPeers, open_mesh: OpenMesh
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
        await mesh.create_tenant()
        yield Counted(mesh, transcript, links)


def _entry(text: str) -> entry_pb2.EntryBody:
    block = message_pb2.ContentBlock(text=message_pb2.Text(text=text))
    message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=[block], model="nowhere/one")
    return entry_pb2.EntryBody(message=message)


async def _life(counted: Counted, found: dict[str, list[Counter[str]]], *, with_file: bool) -> None:
    """Spawn, claim, append, assemble and finalize, and add the round trips of each."""
    mesh = counted.mesh

    async def count(name: str, call: Callable[[], Awaitable[object]]) -> None:
        found.setdefault(name, []).append(await counted.round_trips(call))

    await counted.quiet()
    attachments = [attachment(content=uuid.uuid4().hex)] if with_file else []
    await count("spawn with a file" if with_file else "spawn", lambda: mesh.spawn(attachments=attachments))
    runs: list[run_pb.ClaimedRun] = []

    async def claim() -> None:
        runs.extend(await mesh.claim_any())

    await count("claim", claim)
    [claimed] = runs
    session_id = claimed.session.session_id
    claim_of_run = transcript_pb.WriterClaim(run_id=claimed.run.run_id, epoch=claimed.run.epoch)
    acquire = transcript_pb.AcquireWriterRequest(session_id=session_id, claim=claim_of_run)
    await count("acquire", lambda: counted.of_run(claimed, "AcquireWriter", acquire))
    append = transcript_pb.AppendEntriesRequest(
        session_id=session_id, claim=claim_of_run, idempotency_key=uuid.uuid4().hex, entries=[_entry("Done.")]
    )
    appended: list[transcript_pb.AppendEntriesResponse] = []

    async def append_answer() -> None:
        appended.append(await counted.of_run(claimed, "AppendEntries", append))

    await count("append", append_answer)
    assemble = transcript_pb.AssembleContextRequest(session_id=session_id, token_budget=10_000)
    await count("assemble", lambda: counted.of_run(claimed, "AssembleContext", assemble))
    finalize = run_pb.FinalizeRunRequest(
        epoch=claimed.run.epoch, draft_entry_id=appended[0].entries[-1].entry_id, draft_text="Done."
    )
    await count("finalize", lambda: mesh.run(claimed, mesh.runs.FinalizeRun, finalize))


async def test_round_trips_of_a_run_do_not_grow(counted: Counted, empty_queue: None) -> None:
    found: dict[str, list[Counter[str]]] = {}
    for number in range(2 * ROUNDS):
        await _life(counted, found, with_file=number % 2 == 1)
    least = {
        name: {service: min(each[service] for each in counts) for service in SERVICES}
        for name, counts in found.items()
    }
    grown = {
        (name, service): count
        for name, counts in least.items()
        for service, count in counts.items()
        if count > MOST[name].get(service, 0)
    }
    assert grown == {}
