"""Watchers of sessions, and runs that speak."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh

SECONDS = 60.0
Shown = tuple[Any, ...]


class Watch:
    """A stream of WatchSession, read message by message with a timeout."""

    def __init__(self, messages: AsyncIterator[WatchSessionResponse]) -> None:
        self._messages = messages
        self.cursor = ""

    async def next_message(self) -> WatchSessionResponse:
        """Return the next message."""
        async with asyncio.timeout(SECONDS):
            message = await anext(self._messages)
        self.cursor = message.cursor
        return message

    async def next(self) -> Shown:
        """Return what the next message shows."""
        return shown(await self.next_message())

    async def rest(self) -> AsyncIterator[WatchSessionResponse]:
        """Yield the messages up to the end of the stream."""
        async with asyncio.timeout(SECONDS):
            async for message in self._messages:
                yield message

    async def many(self, count: int) -> list[Shown]:
        """Return what the next messages show."""
        return [await self.next() for _ in range(count)]

    async def until(self, *last: Any) -> list[Shown]:
        """Return what the messages show up to one that shows this."""
        seen = [await self.next()]
        while seen[-1] != last:
            seen.append(await self.next())
        return seen


@asynccontextmanager
async def watching(
    mesh: Mesh, session_id: str, cursor: str = "", *, token: str = "", **fields: Any
) -> AsyncIterator[Watch]:
    """Watch the session, with its transcript unless the fields say otherwise."""
    request = WatchSessionRequest(session_id=session_id, cursor=cursor, **{"with_transcript": True, **fields})
    with use_token(token or client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        stream = mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=3 * SECONDS)
        async with aclosing(stream) as messages:
            yield Watch(messages)


async def watched(
    mesh: Mesh, session_id: str, cursor: str = "", *, token: str = "", **fields: Any
) -> list[WatchSessionResponse]:
    """Return all messages of a watch, to the end of its stream."""
    async with watching(mesh, session_id, cursor, token=token, **fields) as watch:
        return [message async for message in watch.rest()]


def shown(message: WatchSessionResponse) -> Shown:
    """Return the kind of what a message says, and what is special about it."""
    match message.WhichOneof("event"):
        case "session_event":
            event = message.session_event
            if event.kind == session_pb2.SESSION_EVENT_KIND_RUN:
                return ("state", session_pb2.RunState.Name(event.run_state).removeprefix("RUN_STATE_"))
            kind = session_pb2.SessionEventKind.Name(event.kind)
            return ("event", kind.removeprefix("SESSION_EVENT_KIND_"))
        case "entry_appended":
            appended = message.entry_appended
            return ("entry", appended.entry.seq, appended.completes_draft)
        case "draft_delta":
            return ("delta", message.draft_delta.text, message.draft_delta.begins_draft)
        case "draft_retracted":
            return ("retracted",)
    raise AssertionError(f"there is nothing in {message}")


def by_session(messages: Sequence[WatchSessionResponse]) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return the events and the entries of each session. The end of a run is behind its entries."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for message in messages:
        events, entries = found.setdefault(message.session_id, ([], []))
        if message.HasField("session_event"):
            events.append(message.session_event)
        elif message.HasField("entry_appended"):
            assert not events or events[-1].kind != session_pb2.SESSION_EVENT_KIND_CLOSED
            entries.append(message.entry_appended.entry)
    return found


async def acquire(transcript: Peer, held: run_pb.ClaimedRun) -> None:
    """Make the run the writer of its transcript."""
    claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)
    request = transcript_pb.AcquireWriterRequest(session_id=held.session.session_id, claim=claim)
    with use_token(held.run_token):
        stub = TranscriptServiceStub(transcript.channel)
        await transcript.unary(stub.AcquireWriter, request, timeout_seconds=SECONDS)


async def speak(
    transcript: Peer,
    held: run_pb.ClaimedRun,
    text: str,
    *,
    offset: int = 0,
    number: int = 1,
    after_seq: int = 1,
) -> None:
    """Add the text to the draft of the run, which is the writer of its transcript."""
    request = live_pb.WriteDraftRequest(
        session_id=held.session.session_id,
        claim=transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch),
        number=number,
        after_seq=after_seq,
        model="p/m",
        offset=offset,
        pieces=[DraftPiece(text=text)],
    )
    with use_token(held.run_token):
        stub = LiveServiceStub(transcript.channel)
        written = await transcript.unary(stub.WriteDraft, request, timeout_seconds=SECONDS)
    assert written.end_offset == offset + len(text.encode())
