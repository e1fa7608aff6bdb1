"""Models that speak on command, and watchers of sessions whose connections are cut."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from uuid import uuid4

from aiohttp import web
from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.draft_content import DraftContent, content_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status

from tests.support.links import Dial, Link
from tests.support.model_router.responses import (
    COMPLETED,
    CREATED,
    Event,
    called,
    failed,
    numbered,
    reasoned,
    said,
)
from tests.support.waiting import eventually

_CHUNK_BYTES = 64 * 1024
_PAUSE_SECONDS = 0.05
_CALL_SECONDS = 3600.0
_ALPHABET = "etaoin \n\u00e9\u00df\u03c9\u0436\u05d0\u0b95\u65e5\u672c\u8a9e\u20ac\U0001f600\U0001f9d1\u0301"


def pieces(seed: object) -> Iterator[str]:
    """Yield texts of one to twelve characters for ever, with characters of one to four bytes."""
    random = Random(f"pieces {seed}")
    while True:
        yield "".join(random.choices(_ALPHABET, k=random.randint(1, 12)))


class Speech:
    """Answers a request to OpenAI's responses, with what `think`, `say` and `call` are given meanwhile,
    in this order.

    `thinking`, `text` and `arguments` are all that was given. The answer calls the tool, if there is
    one, at its end.
    """

    def __init__(self, tool: str = "") -> None:
        self.thinking, self.text, self.arguments = "", "", ""
        self.is_over = False
        self._tool, self._call_id = tool, f"call_{uuid4().hex}"
        self._open = ""
        self._commands: asyncio.Queue[Sequence[Event] | None] = asyncio.Queue()

    def think(self, *texts: str) -> None:
        """Send each piece of thinking in an event of its own."""
        self.thinking += "".join(texts)
        at = {"item_id": "rs_0", "output_index": 0, "summary_index": 0}
        kind = "response.reasoning_summary_text.delta"
        self._send("thinking", *({"type": kind, **at, "delta": text} for text in texts))

    def say(self, *texts: str) -> None:
        """Send each text in an event of its own."""
        self.text += "".join(texts)
        self._send("text", *said(*texts, place=1)[2:-3])

    def call(self, *arguments: str) -> None:
        """Send each part of the arguments of the call in an event of its own."""
        self.arguments += "".join(arguments)
        self._send("call", *called(self._call_id, self._tool, *arguments, place=2)[1:-2])

    def end(self) -> None:
        """Complete the answer."""
        if self._tool and not self.arguments:
            self.call("{}")
        self.is_over = True
        self._send("", COMPLETED)

    def _send(self, part: str, *events: Event) -> None:
        """Send events of a part of the answer, behind the end of the one before."""
        opened = {
            "thinking": lambda: reasoned("", "", place=0)[:2],
            "text": lambda: said("", place=1)[:2],
            "call": lambda: called(self._call_id, self._tool, "", place=2)[:1],
        }
        closed = {
            "thinking": lambda: reasoned(self.thinking, "sealed", place=0)[3:],
            "text": lambda: said(self.text, place=1)[-3:],
            "call": lambda: called(self._call_id, self._tool, self.arguments, place=2)[-2:],
        }
        around: list[Event] = []
        if part != self._open:
            around = [*(closed[self._open]() if self._open else []), *(opened[part]() if part else [])]
            self._open = part
        self._commands.put_nowait([*around, *events])

    def break_off(self) -> None:
        """Close the connection in the middle of the answer."""
        self._commands.put_nowait(None)

    def fail(self) -> None:
        """Report an error of the provider in the middle of the answer."""
        self._commands.put_nowait([failed("server_error", "The server had an error.")])

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events: Sequence[Event] | None = CREATED
        number = 0
        while events is not None:
            for event in numbered(*events):
                number += 1
                data = json.dumps({**event, "sequence_number": number})
                await response.write(f"event: {event['type']}\ndata: {data}\n\n".encode())
            if events[-1]["type"] in ("response.completed", "response.failed"):
                await response.write_eof()
                return response
            events = await self._commands.get()
        assert request.transport is not None
        request.transport.close()
        return response


class CuttingLink(Link):
    """A proxy that closes its connection within the bytes that a server sends."""

    def __init__(self, dial: Dial) -> None:
        super().__init__(dial)
        self._left: int | None = None

    def cut_after(self, byte_count: int) -> None:
        """Let so many more bytes through to the client. Then close the connection."""
        self._left = byte_count

    async def backward(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward what the server sends, up to the cut."""
        try:
            while data := await reader.read(_CHUNK_BYTES):
                passing = data[: self._left]
                writer.write(passing)
                await writer.drain()
                if self._left is not None:
                    self._left -= len(passing)
                if self._left == 0:
                    self._left = None
                    break
            writer.close()
        except OSError:
            writer.transport.abort()


@dataclass
class Watcher:
    """Reads what happens in a session, over as many connections as it takes.

    `on_first_event` is called behind the first event of each connection. After a cut, the next one
    begins when `may_resume` returns true.
    """

    mesh: WireMesh
    session_id: str
    on_first_event: Callable[[], None] = lambda: None
    may_resume: Callable[[], bool] = lambda: True
    events: list[WatchSessionResponse] = field(default_factory=list)
    cut_count: int = 0
    """Connections that ended behind an event."""
    cuts_within_drafts: int = 0

    @property
    def drafts(self) -> "Drafts":
        return drafts_of(self.events)

    @property
    def entries(self) -> list[Entry]:
        return [one.entry_appended.entry for one in self.events if one.HasField("entry_appended")]

    async def watch(self) -> None:
        """Watch until the session has ended. Resume with the newest cursor when a connection ends."""
        peer = self.mesh.service("session")
        stub, has_ended = SessionServiceStub(peer.channel), False
        request = WatchSessionRequest(session_id=self.session_id, with_transcript=True)
        while not has_ended:
            messages = peer.stream(stub.WatchSession, request, timeout_seconds=_CALL_SECONDS)
            has_event = False
            try:
                async with aclosing(messages):
                    async for message in messages:
                        assert message.WhichOneof("event"), "there is something in each message"
                        assert message.session_id == self.session_id
                        request.cursor = message.cursor
                        self.events.append(message)
                        if not has_event:
                            has_event = True
                            self.on_first_event()
                has_ended = True
            except MeshError as error:
                if error.status is not Status.UNAVAILABLE:
                    raise
            if has_event and not has_ended:
                self.cut_count += 1
                self.cuts_within_drafts += self.drafts.open is not None
                await eventually(self.may_resume)
            else:
                await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def watching(*watchers: Watcher) -> AsyncIterator[None]:
    """Let them watch during the block, which fails if one of them does."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watcher.watch()) for watcher in watchers]
        yield
        for task in tasks:
            task.cancel()


@dataclass
class Drafts:
    """The drafts of a feed: the texts of those that became entries, and of those that were
    retracted, and the open one.
    """

    completed: list[str] = field(default_factory=list)
    retracted: list[str] = field(default_factory=list)
    open: DraftContent | None = None

    @property
    def open_text(self) -> str:
        return self.open.text if self.open is not None else ""

    @property
    def open_size(self) -> int:
        """The number of characters of all kinds in the open draft."""
        if self.open is None:
            return 0
        arguments = sum(len(call.arguments) for call in self.open.calls)
        return len(self.open.text) + len(self.open.thinking) + arguments


def drafts_of(events: Sequence[WatchSessionResponse]) -> Drafts:
    """Follow the contract of WatchSession. Raises AssertionError if the events break it."""
    found = Drafts()
    for event in events:
        match event.WhichOneof("event"):
            case "draft_delta":
                delta = event.draft_delta
                assert delta.begins_draft is (found.open is None), "one draft ends before the next"
                found.open = found.open or DraftContent()
                part = delta.tool_call
                said = delta.text or delta.thinking or part.arguments or part.begins_call
                assert said, "a delta is empty"
                found.open.add(delta)
            case "draft_retracted":
                assert found.open is not None, "a draft that had not begun was retracted"
                found.retracted.append(found.open.text)
                found.open = None
            case "entry_appended" if event.entry_appended.completes_draft:
                assert found.open is not None, "a draft that had not begun was completed"
                assert found.open == content_of(event.entry_appended.entry.body.message)
                found.completed.append(found.open.text)
                found.open = None
    return found


def text_of(entry: Entry) -> str:
    """Return the text blocks of a message, one behind the other."""
    return "".join(block.text.text for block in entry.body.message.content)


def answers_of(entries: Sequence[Entry]) -> list[str]:
    """Return the texts of the answers of models."""
    answers = [one for one in entries if one.body.message.role == message_pb2.ROLE_ASSISTANT]
    return [text_of(one) for one in answers]
