"""A runner outside of the mesh: it claims EXTERNAL runs, keeps its leases, publishes files, and
sometimes forgets a run.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.output_pb2 import PublishFilesRequest
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter

from tests.chaos.random_faults.history import Call, History, Outcome
from tests.chaos.random_faults.load.calls import CONTENT, Client

ANSWER = "The harness says: done."
_FORGETS = 0.2
_MOST_TRIES = 100


@dataclass
class Harness:
    """Claim runs, append an answer, and offer it."""

    session: Peer
    transcript: Peer
    keys: Path
    history: History
    random: Random
    name: str

    async def claim_steadily(self) -> None:
        """Claim runs again and again. It never returns."""
        while True:
            await self.claim_once()

    async def claim_once(self) -> None:
        """Claim a run, if one waits, and work on it."""
        request = run_pb.ClaimRunsRequest(
            runner_id=self.name, max_run_count=1, runtimes=[session_pb2.RUNTIME_EXTERNAL]
        )
        request.wait.FromSeconds(2)
        stub: Any = RunServiceStub(self.session.channel)
        claimed = []
        with self.history.call("claim", "*", runner=self.name) as call:
            with use_token(TokenMinter("runner", self.keys / "runner.pem").runner_token()):
                claimed = list((await self.session.unary(stub.ClaimRuns, request)).runs)
            call.got = {"runs": [[held.run.run_id, held.run.epoch] for held in claimed]}
        for held in claimed:
            if held.run.attempt_count > 1 or self.random.random() > _FORGETS:
                await self._work_on(held)
        if not call.is_ok:
            await asyncio.sleep(self.random.uniform(0.2, 1.0))

    async def _work_on(self, held: run_pb.ClaimedRun) -> None:
        transcripts: Any = TranscriptServiceStub(self.transcript.channel)
        runs: Any = RunServiceStub(self.session.channel)
        session_id = held.session.session_id
        claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)
        acquire = transcript_pb.AcquireWriterRequest(session_id=session_id, claim=claim)
        if await self._insist(held, self.transcript, transcripts.AcquireWriter, acquire) is None:
            return
        publish = PublishFilesRequest(
            epoch=held.run.epoch,
            request_id="report",
            files=[InlineAttachment(name="report.txt", data=f"{CONTENT} by {held.run.run_id}\n".encode())],
        )
        if await self._insist(held, self.session, runs.PublishFiles, publish) is None:
            return
        message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=ANSWER))])
        for number in range(5):  # A gate requests one revision at most.
            append = transcript_pb.AppendEntriesRequest(
                session_id=session_id,
                claim=claim,
                request_id=f"{held.run.run_id}:{held.run.epoch}:draft:{number}",
                entries=[EntryBody(message=message)],
            )
            appended = await self._insist(held, self.transcript, transcripts.AppendEntries, append)
            if appended is None:
                return
            offer = run_pb.FinalizeRunRequest(
                epoch=held.run.epoch, draft_entry_id=appended.entries[0].entry_id, draft_text=ANSWER
            )
            decided = await self._insist(held, self.session, runs.FinalizeRun, offer)
            if decided is None or decided.WhichOneof("outcome") != "revise":
                return

    async def _insist(self, held: run_pb.ClaimedRun, peer: Peer, method: Any, request: Any) -> Any:
        """Repeat the call of the run until it is answered; None if it is refused.

        The lease is extended meanwhile.
        """
        heartbeat = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
        for _ in range(_MOST_TRIES):
            call, answer = await self._call(held, peer, method, request)
            if call.outcome is not Outcome.UNKNOWN:
                return answer
            runs: Any = RunServiceStub(self.session.channel)
            _, extended = await self._call(held, self.session, runs.HeartbeatRun, heartbeat)
            if extended is not None and extended.run_token:
                held.run_token = extended.run_token
            await asyncio.sleep(self.random.uniform(0.2, 1.0))
        return None

    async def _call(self, held: run_pb.ClaimedRun, peer: Peer, method: Any, request: Any) -> tuple[Call, Any]:
        """Make one call of the run, and record it."""
        answer = None
        with (
            self.history.call(
                "harness",
                held.tenant_id,
                method=method.path.rpartition("/")[2],
                run_id=held.run.run_id,
                epoch=held.run.epoch,
            ) as call,
            use_token(held.run_token),
        ):
            answer = await peer.unary(method, request)
        return call, answer


async def order_steadily(client: Client) -> None:
    """Spawn sessions for the harness, and wait for them."""
    while not client.stop.is_set():
        request = client.spawn_request(
            "Do it elsewhere.", runtime=session_pb2.RUNTIME_EXTERNAL, label="external"
        )
        if session_id := await client.spawn(request):
            await client.wait(session_id)
        await client.pause(0.2, 1.0)
