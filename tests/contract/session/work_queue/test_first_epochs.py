"""A run has the epoch of its first claim, so that a takeover reads back no further."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text, TokenUsage
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runner.clients.peers import open_peers
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.earlier_turns import replay_earlier_turns
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import start_process

from tests.support.serving import caller_at, shared_settings
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains

EARLIER_TURNS = 250  # More than two pages.


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def write_turns(transcript: Peer, held: run_pb.ClaimedRun, count: int) -> run_pb.FinalizeRunRequest:
    """Append this many answers in the run's name, and a draft; each cost one token."""
    offer = await draft(transcript, held, "The answer.")
    stub: Any = TranscriptServiceStub(transcript.channel)
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text="turn"))])
    message.usage.CopyFrom(TokenUsage(input_token_count=1))
    request = transcript_pb.AppendEntriesRequest(
        session_id=held.session.session_id,
        claim=transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch),
        request_id=uuid4().hex,
        entries=[EntryBody(message=message)] * count,
    )
    with use_token(held.run_token):
        await transcript.unary(stub.AppendEntries, request, timeout_seconds=60)
    return offer


async def release(mesh: Mesh, held: run_pb.ClaimedRun) -> None:
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))


async def ended(mesh: Mesh, held: run_pb.ClaimedRun, offer: run_pb.FinalizeRunRequest) -> None:
    assert (await mesh.run(held, mesh.runs.FinalizeRun, offer)).HasField("accepted")


async def send(mesh: Mesh, session_id: str, text: str) -> None:
    request = pb.SendMessageRequest(session_id=session_id, request_id=uuid4().hex, text=text)
    await mesh.client(mesh.sessions.SendMessage, request)


class CountingPeer:
    """The peer, and how many calls were made to it."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.call_count = peer, 0

    async def unary(self, method: Callable[..., Any], request: Any, *, timeout_seconds: float) -> Any:
        self.call_count += 1
        return await self.peer.unary(method, request, timeout_seconds=timeout_seconds)


@asynccontextmanager
async def taken_over(
    held: run_pb.ClaimedRun, peers: dict[str, str], keys: Path, folder: Path
) -> AsyncIterator[tuple[Assignment, CountingPeer]]:
    """The run in a runner's hands, and what it asks the transcript service."""
    targets = {f"{name.replace('-', '_')}_target": target for name, target in peers.items()}
    settings = RunnerSettings(
        **shared_settings("runner", keys), session_target="127.0.0.1:1", workspace_root=folder, **targets
    )
    async with start_process("runner", settings) as process, open_peers(process, settings) as opened:
        counting: Any = CountingPeer(opened.transcript)
        assignment = Assignment(
            claimed=held,
            peers=replace(opened, transcript=counting),
            workspace=folder,
            max_workspace_bytes=settings.max_workspace_bytes,
            tools={},
            generate_timeout_seconds=60,
        )
        with use_token(held.run_token):
            yield assignment, counting


async def test_ClaimRuns__says_at_which_epoch_the_run_was_claimed_first(mesh: Mesh, transcript: Peer) -> None:
    """This also holds after a release, and for each run of a session."""
    session_id = (await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id
    said: list[tuple[int, int]] = []

    async def claimed() -> run_pb.ClaimedRun:
        held = await mesh.claim(session_id)
        said.append((held.run.epoch, held.first_epoch))
        return held

    await release(mesh, await claimed())
    await release(mesh, await claimed())
    held = await claimed()
    await ended(mesh, held, await draft(transcript, held, "The answer."))
    await send(mesh, session_id, "And now?")
    await release(mesh, await claimed())
    await claimed()
    assert said == [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4)]


async def test_ClaimRuns__does_not_know_of_a_run_that_an_older_service_claimed_first(
    mesh: Mesh, remains: Remains
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute("update session.runs set first_epoch = 0 where run_id = %s", (held.run.run_id,))
    await release(mesh, held)
    again = await mesh.claim(held.session.session_id)
    assert (again.run.epoch, again.first_epoch) == (2, 0)


async def test_ListEntries__a_later_run_that_is_taken_over_reads_back_one_page(
    mesh: Mesh, transcript: Peer, peers: dict[str, str], keys: Path, tmp_path: Path
) -> None:
    session_id = (await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id
    held = await mesh.claim(session_id)
    await ended(mesh, held, await write_turns(transcript, held, EARLIER_TURNS))
    await send(mesh, session_id, "And now?")
    held = await mesh.claim(session_id)
    await write_turns(transcript, held, 2)
    await release(mesh, held)
    again = await mesh.claim(session_id)
    async with taken_over(again, peers, keys, tmp_path) as (assignment, counting):
        assert await replay_earlier_turns(assignment) == 3
        assert assignment.usage_total.input_token_count == 2
        assert counting.call_count == 1


async def test_ListEntries__copies_of_a_fork_are_no_turns_of_its_run(
    mesh: Mesh, transcript: Peer, peers: dict[str, str], keys: Path, tmp_path: Path
) -> None:
    """They stand before all that it wrote, and their writers were runs of another session."""
    parent = await mesh.claim((await mesh.spawn()).session_id)
    await write_turns(transcript, parent, EARLIER_TURNS)
    child = await mesh.spawn_as(
        parent, context=session_pb2.CONTEXT_MODE_FORK, mode=session_pb2.SESSION_MODE_SESSION
    )
    held = await mesh.claim(child.session_id)
    await write_turns(transcript, held, 1)
    await release(mesh, held)
    again = await mesh.claim(child.session_id)
    async with taken_over(again, peers, keys, tmp_path) as (assignment, counting):
        assert await replay_earlier_turns(assignment) == 2
        assert counting.call_count > 1
    await ended(mesh, again, await draft(transcript, again, "The answer."))
    await send(mesh, child.session_id, "And now?")
    await release(mesh, await mesh.claim(child.session_id))
    later = await mesh.claim(child.session_id)
    async with taken_over(later, peers, keys, tmp_path) as (assignment, counting):
        assert await replay_earlier_turns(assignment) == 0
        assert counting.call_count == 1
