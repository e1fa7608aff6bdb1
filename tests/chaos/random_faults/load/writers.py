"""Writers that contend for one transcript, each with claims of rising epochs."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter

from tests.chaos.random_faults.history import History, Outcome

FIRST_EPOCH = 1000
_CALL_SECONDS = 10.0
_TOKEN_SECONDS = 600.0
_MOST_TRIES = 50


@dataclass
class Writer:
    """A writer with a run of its own, that takes the transcript over now and then."""

    peer: Peer
    keys: Path
    history: History
    random: Random
    stop: asyncio.Event
    tenant: str
    session_id: str
    name: str
    epoch: int
    slowness: float = 1.0
    """The factor of its pauses after an append."""

    def __post_init__(self) -> None:
        self.run_id = new_id(IdKind.RUN)
        self.stub: Any = TranscriptServiceStub(self.peer.channel)
        self.minter = TokenMinter("session", self.keys / "session.pem")

    async def write_steadily(self) -> None:
        """Append until the load stops. A lost claim is sometimes taken back."""
        number = 0
        await self.acquire()
        while not self.stop.is_set():
            number += 1
            outcome = await self.append(f"{self.name}/{number}")
            if outcome is Outcome.REFUSED and self.random.random() < 0.3:
                await self.acquire()
            await asyncio.sleep(self.slowness * self.random.uniform(0.02, 0.4))

    async def append(self, key: str) -> Outcome:
        """Append one entry; repeat the append while its effect is not known, sometimes also after
        the answer.
        """
        request = pb.AppendEntriesRequest(
            session_id=self.session_id,
            claim=self._claim(),
            request_id=key,
            entries=[
                EntryBody(message=Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=key))]))
            ],
        )
        outcome = Outcome.UNKNOWN
        for _ in range(_MOST_TRIES):
            with self.history.call(
                "append",
                self.tenant,
                session_id=self.session_id,
                key=key,
                text=key,
                run_id=self.run_id,
                epoch=self.epoch,
            ) as call:
                answer = await self._unary(self.stub.AppendEntries, request)
                call.got = {"seq": answer.entries[0].seq, "replayed": answer.replayed}
            outcome = call.outcome
            give_up = self.random.random() < 0.1  # So that unknown effects stay in the history.
            if outcome is Outcome.REFUSED or (call.is_ok and self.random.random() < 0.8) or give_up:
                break
            if outcome is Outcome.UNKNOWN:
                await asyncio.sleep(self.random.uniform(0.1, 1.0))
        return outcome

    async def acquire(self) -> None:
        """Claim the transcript at the next epoch."""
        for _ in range(20):
            self.epoch += 1
            request = pb.AcquireWriterRequest(session_id=self.session_id, claim=self._claim())
            refused: MeshError | None = None
            with self.history.call(
                "acquire", self.tenant, session_id=self.session_id, run_id=self.run_id, epoch=self.epoch
            ) as call:
                try:
                    await self._unary(self.stub.AcquireWriter, request)
                except MeshError as error:
                    refused = error
                    raise
            if call.is_ok or self.stop.is_set():
                return
            if refused is not None and "writer_epoch" in refused.facts:
                self.epoch = int(refused.facts["writer_epoch"])
            await asyncio.sleep(self.random.uniform(0.05, 0.5))

    async def _unary(self, method: Any, request: Any) -> Any:
        token = self.minter.run_token(self.tenant, self.session_id, self.run_id, self.epoch, _TOKEN_SECONDS)
        with use_token(token):
            return await self.peer.unary(method, request, timeout_seconds=_CALL_SECONDS)

    def _claim(self) -> pb.WriterClaim:
        return pb.WriterClaim(run_id=self.run_id, epoch=self.epoch)


def writer_name() -> str:
    """Return a name that no other writer has."""
    return f"writer-{uuid4().hex[:8]}"
