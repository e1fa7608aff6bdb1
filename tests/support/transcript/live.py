"""Streams of WatchTranscript, read event by event, and the drafts that are stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.transcript.fixtures import Session, Superuser

SECONDS = 60.0


class Watching:
    """A WatchTranscript stream, read event by event with a timeout."""

    def __init__(self, answers: AsyncIterator[live_pb.WatchTranscriptResponse]) -> None:
        self.answers = answers
        self.cursor = ""
        self.read_seq = -1

    async def first(self) -> None:
        response = await self._next()
        assert response.WhichOneof("event") is None

    async def next(self) -> tuple[Any, ...]:
        """Return the next event: its kind, and its text, or its seq and what it completes."""
        response = await self._next()
        match response.WhichOneof("event"):
            case "entry_appended":
                return ("entry", response.entry_appended.entry.seq, response.entry_appended.completes_draft)
            case "draft_delta":
                delta = response.draft_delta
                said = delta.tool_call if delta.HasField("tool_call") else delta.thinking or delta.text
                kind = "delta" if delta.HasField("text") else delta.WhichOneof("delta")
                return (kind, said, delta.begins_draft)
            case other:
                return (other,)

    async def many(self, count: int) -> list[tuple[Any, ...]]:
        return [await self.next() for _ in range(count)]

    async def _next(self) -> live_pb.WatchTranscriptResponse:
        async with asyncio.timeout(SECONDS):
            response = await anext(self.answers)
        assert response.read_seq >= self.read_seq
        self.cursor, self.read_seq = response.cursor, response.read_seq
        return response


@asynccontextmanager
async def watching(
    session: Session, cursor: str = "", *, after_seq: int = 0, token: str = "", peer: Peer | None = None
) -> AsyncIterator[Watching]:
    request = live_pb.WatchTranscriptRequest(
        session_id=session.session_id, cursor=cursor, after_seq=after_seq
    )
    source = peer or session.service.peer
    with use_token(token or session.service_token()):
        answers = source.stream(
            LiveServiceStub(source.channel).WatchTranscript, request, timeout_seconds=3 * SECONDS
        )
        async with aclosing(answers):
            watch = Watching(answers)
            await watch.first()
            yield watch


async def kept_drafts(session: Session, superuser: Superuser) -> list[tuple[int, int, bytes]]:
    """Return epoch, number and text of each stored piece."""
    query = "select epoch, number, text from draft_pieces where session_id = %s order by 1, 2"
    return [*await (await superuser.execute(query, (session.session_id,))).fetchall()]
