"""Clients that write without a pause, and remember each write that was acknowledged."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import client_tokens, runner_tokens

T = TypeVar("T")

# Slow enough for a small machine, which does the runs of the spawned sessions too.
_SPAWN_PAUSE_SECONDS = 0.3
_APPEND_PAUSE_SECONDS = 0.02
_REPEAT_PAUSE_SECONDS = 0.1
_GIVE_UP_SECONDS = 60.0
_HEARTBEAT_SECONDS = 2.0


@dataclass
class History:
    """The acknowledged writes, and the refusals by RPC."""

    appended: dict[str, int] = field(default_factory=dict)
    """The seq of each entry, by its request_id, which is also its text."""
    spawned: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The session of each `request_id`, and the time of the answer."""
    refused: Counter[str] = field(default_factory=Counter)
    repeated_spawns: int = 0
    """Spawns that were refused, and succeeded when the same request was repeated."""

    async def until_accepted(self, rpc: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the same call until it succeeds, or for a minute.

        Repeats UNAVAILABLE, and a spawn that another call is still working on. Raises other errors.
        """
        refused, give_up = 0, monotonic() + _GIVE_UP_SECONDS
        while True:
            try:
                answer = await call()
            except MeshError as error:
                may_repeat = error.status is Status.UNAVAILABLE or error.reason is Reason.SPAWN_IN_PROGRESS
                if not may_repeat or monotonic() > give_up:
                    raise
                refused += 1
                self.refused[rpc] += 1
                await asyncio.sleep(_REPEAT_PAUSE_SECONDS)
            else:
                self.repeated_spawns += rpc == "SpawnSession" and refused > 0
                return answer


@dataclass
class Clients:
    """A tenant's client, and a harness that runs EXTERNAL sessions, with one history."""

    session: Peer
    transcript: Peer
    keys: Any
    tenant: str
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._client_token = client_tokens(self.keys).client_token(self.tenant, "load", 3600)
        self.sessions: Any = SessionServiceStub(self.session.channel)
        self.runs: Any = RunServiceStub(self.session.channel)
        self.transcripts: Any = TranscriptServiceStub(self.transcript.channel)

    async def call(self, peer: Peer, rpc: str, stub: Any, request: Any, token: str = "") -> Any:
        """Repeat a call until it is accepted."""

        async def once() -> Any:
            with use_token(token or self._client_token):
                return await peer.unary(getattr(stub, rpc), request, timeout_seconds=60)

        return await self.history.until_accepted(rpc, once)

    async def spawn(self, *, token: str = "", **more: Any) -> session_pb2.Session:
        request = session_pb.SpawnSessionRequest(request_id=uuid4().hex, task="Say something.", **more)
        answer = await self.call(self.session, "SpawnSession", self.sessions, request, token)
        self.history.spawned[request.request_id] = answer.session.session_id, monotonic()
        session: session_pb2.Session = answer.session
        return session

    async def spawn_until(self, stop: asyncio.Event) -> None:
        """Spawn one session after the other."""
        while not stop.is_set():
            await self.spawn()
            await asyncio.sleep(_SPAWN_PAUSE_SECONDS)

    async def wait(self, session_id: str) -> session_pb2.Run:
        """Wait for the end of the session's run."""
        request = session_pb.WaitSessionRequest(session_id=session_id)
        request.timeout.FromSeconds(50)
        answer = await self.call(self.session, "WaitSession", self.sessions, request)
        assert answer.done, answer.session
        run: session_pb2.Run = answer.session.latest_run
        return run

    async def entries(self, session_id: str) -> list[Entry]:
        found: list[Entry] = []
        request = transcript_pb.ListEntriesRequest(session_id=session_id, page_size=500)
        while True:
            page = await self.call(self.transcript, "ListEntries", self.transcripts, request)
            found += page.entries
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token


class Harness:
    """A harness that holds the run of one session: it appends, spawns children, and reads their
    results.
    """

    def __init__(self, clients: Clients, held: run_pb.ClaimedRun) -> None:
        self.clients = clients
        self.held = held
        self.session_id = held.session.session_id
        self.children: list[str] = []
        self.results: Counter[str] = Counter()
        """For each child, the number of times that its result was listed before the acknowledgement."""
        self._token = held.run_token
        self._claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)

    @classmethod
    async def start(cls, clients: Clients) -> "Harness":
        """Spawn a session of the harness, and claim its run."""
        session = await clients.spawn(runtime=session_pb2.RUNTIME_EXTERNAL)
        request = run_pb.ClaimRunsRequest(
            runner_id="harness", max_run_count=1, runtimes=[session_pb2.RUNTIME_EXTERNAL]
        )
        request.wait.FromSeconds(20)
        token = runner_tokens(clients.keys).runner_token()
        answer = await clients.call(clients.session, "ClaimRuns", clients.runs, request, token)
        (held,) = answer.runs
        assert held.session.session_id == session.session_id
        harness = cls(clients, held)
        acquire = transcript_pb.AcquireWriterRequest(session_id=harness.session_id, claim=harness._claim)
        await harness.on_transcript("AcquireWriter", acquire)
        return harness

    async def on_session(self, rpc: str, request: Any) -> Any:
        stub = self.clients.sessions if rpc == "SpawnSession" else self.clients.runs
        return await self.clients.call(self.clients.session, rpc, stub, request, self._token)

    async def on_transcript(self, rpc: str, request: Any) -> Any:
        peer, stub = self.clients.transcript, self.clients.transcripts
        return await self.clients.call(peer, rpc, stub, request, self._token)

    async def append(self, text: str) -> str:
        """Append an entry with this text, and return its id."""
        message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=text))])
        request = transcript_pb.AppendEntriesRequest(
            session_id=self.session_id,
            claim=self._claim,
            request_id=text,
            entries=[EntryBody(message=message)],
        )
        (entry,) = (await self.on_transcript("AppendEntries", request)).entries
        self.clients.history.appended[text] = entry.seq
        entry_id: str = entry.entry_id
        return entry_id

    async def append_until(self, stop: asyncio.Event) -> None:
        """Append one entry after the other."""
        for number in count(1):
            if stop.is_set():
                return
            await self.append(f"{self.session_id}/{number}")
            await asyncio.sleep(_APPEND_PAUSE_SECONDS)

    async def delegate_until(self, stop: asyncio.Event) -> None:
        """Spawn one child after the other, and read their results."""
        while not stop.is_set():
            self.children.append((await self.clients.spawn(token=self._token)).session_id)
            await self.read_results()
            await asyncio.sleep(_SPAWN_PAUSE_SECONDS)

    async def hold_until(self, stop: asyncio.Event) -> None:
        """Renew the lease."""
        while not stop.is_set():
            request = run_pb.HeartbeatRunRequest(epoch=self.held.run.epoch)
            self._token = (await self.on_session("HeartbeatRun", request)).run_token or self._token
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def read_results(self) -> bool:
        """Read and acknowledge the inbox; return whether all children have reported."""
        box = await self.on_session("ListInbox", run_pb.ListInboxRequest())
        if box.messages:
            self.results.update(message.child_session_id for message in box.messages)
            request = run_pb.AcknowledgeInboxRequest(
                epoch=self.held.run.epoch, keys=[message.key for message in box.messages]
            )
            await self.on_session("AcknowledgeInbox", request)
        return set(self.children) <= set(self.results)

    async def finalize(self) -> run_pb.FinalizeRunResponse:
        """Offer an answer."""
        text = f"{self.session_id}/answer"
        request = run_pb.FinalizeRunRequest(
            epoch=self.held.run.epoch, draft_entry_id=await self.append(text), draft_text=text
        )
        answer: run_pb.FinalizeRunResponse = await self.on_session("FinalizeRun", request)
        return answer
