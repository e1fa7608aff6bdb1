"""The transcript service with a real blob store, and tenants with large tool results."""

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.longrunning.operations_pb2 import Operation
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import file_service_pb2 as file_pb
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.file_service_pb2_grpc import FileServiceStub
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.attachment_blob.fixtures import BlobService, Tenant
from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.bodies import assistant, text_block
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.operating import idle_worker, result_of

NO_TAIL = FreshTail(message_count=1, token_count=1)


@dataclass(frozen=True)
class Tiered:
    """A session of a tenant whose transcripts have a blob store, and that store for its
    administrator."""

    session: Session
    blobs: Tenant

    async def set_tier(
        self, version: int, *, is_on: bool, large_payload_bytes: int = 0, mask_secrets: bool = False
    ) -> None:
        await self.session.prepare_tenant(
            version,
            stub_large_tool_payloads=is_on,
            large_payload_bytes=large_payload_bytes,
            mask_secrets=mask_secrets,
        )

    async def converse(
        self, claim: pb.WriterClaim, *results: str, name: str = "read", **arguments: Any
    ) -> list[int]:
        """Append a call and its result for each text, and return the seqs of the results."""
        seqs = []
        for number, text in enumerate(results):
            call_id = f"call-{claim.epoch}-{number}-{len(text)}"
            answer = await self.session.append(
                [calling(call_id, name, arguments), answering(call_id, text, name=name)], claim=claim
            )
            seqs.append(answer.entries[1].seq)
        return seqs

    async def context(
        self, token_budget: int = 200_000, *, tail: FreshTail | None = None, **more: Any
    ) -> pb.AssembleContextResponse:
        request = pb.AssembleContextRequest(
            session_id=self.session.session_id, token_budget=token_budget, fresh_tail=tail, **more
        )
        with use_token(self.session.client_token()):
            return await self.session.service.peer.unary(
                self.session.service.stub.AssembleContext, request, timeout_seconds=60
            )

    async def start_tier(
        self, action: "storage_pb.TierAction.ValueType", *, request_id: str = "", token: str = ""
    ) -> Operation:
        """Start an operation that no worker carries yet."""
        request = storage_pb.TierTranscriptRequest(
            session_id=self.session.session_id,
            action=action,
            request_id=request_id or secrets.token_hex(8),
        )
        peer = self.session.service.peer
        with use_token(token or self.session.client_token()):
            return await peer.unary(
                StorageServiceStub(peer.channel).TierTranscript, request, timeout_seconds=60
            )

    async def run_tier(self, action: "storage_pb.TierAction.ValueType") -> storage_pb.TierTranscriptResponse:
        """Run an operation, and return its response."""
        started = await self.start_tier(action)
        response: storage_pb.TierTranscriptResponse = await result_of(
            self.session, started, storage_pb.TierTranscriptResponse
        )
        return response

    async def describe(self, file_id: str, *, token: str = "", **more: Any) -> file_pb.DescribeFileResponse:
        stub = FileServiceStub(self.session.service.peer.channel)
        with use_token(token or self.session.client_token()):
            return await self.session.service.peer.unary(
                stub.DescribeFile, file_pb.DescribeFileRequest(file_id=file_id, **more), timeout_seconds=60
            )

    async def blob(self, file_id: str) -> bytes:
        """Read a file from the blob store directly."""
        minter = TokenMinter("transcript", self.blobs.service.keys / "transcript.pem")
        stub: Any = BlobServiceStub(self.blobs.service.peer.channel)
        request = blob_pb.GetBlobRequest(blob_id=file_id.replace("file_", "blb_"))
        with use_token(minter.service_token(self.blobs.tenant_id)):
            answers = self.blobs.service.peer.stream(stub.GetBlob, request, timeout_seconds=60)
            return b"".join([piece.data async for piece in answers])

    def on(self, session: Session) -> "Tiered":
        return replace(self, session=session)


@pytest.fixture(scope="module")
async def tier_service(service: Service, blobs: BlobService, keys: Path) -> AsyncIterator[Service]:
    """A second replica of the transcript service, which has the blob store."""
    settings = TranscriptSettings(
        **shared_settings("transcript", keys),
        database_url=service.dsn.app,
        attachment_blob_target=blobs.target,
    )
    async with (
        served("transcript", settings, open_service) as target,
        caller_at(target, "transcript") as peer,
        idle_worker(settings) as jobs,
    ):
        yield replace(service, peer=peer, target=target, jobs=jobs)


@pytest.fixture
async def tiered(tier_service: Service, blobs: BlobService) -> Tiered:
    """A session with an empty transcript, of a new tenant with the stub tier."""
    session = tier_service.session()
    tenant = Tenant(blobs, session.tenant_id)
    await tenant.prepare()
    fresh = Tiered(session, tenant)
    await fresh.set_tier(1, is_on=True)
    await session.create()
    return fresh


def calling(call_id: str, name: str, arguments: dict[str, Any] | Sequence[Any] | str) -> entry_pb.EntryBody:
    block = {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}
    call = content_pb.ToolCall(tool_call_id=call_id, name=name, block_json=json.dumps(block))
    message = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(tool_call=call)]
    )
    return entry_pb.EntryBody(message=message)


def answering(call_id: str, *texts: str, name: str = "read") -> entry_pb.EntryBody:
    message = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT, tool_call_id=call_id, tool_name=name, content=map(text_block, texts)
    )
    return entry_pb.EntryBody(message=message)


def long_text(name: str, size: int = 10_000) -> str:
    """Return a text of many words, which differs by name."""
    words = " ".join(f"{name}{number}" for number in range(size // (len(name) + 2)))
    return words[:size]


def image_block(data: bytes) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(image=content_pb.Image(mime_type="image/png", data=data))


async def stored(tiered: Tiered, text: str, **arguments: str) -> str:
    """Append a result with this text, and return its file id."""
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, text, name="exec", **arguments)
    await tiered.session.append([assistant("end")], claim=claim)
    [stubbed] = (await tiered.context(tail=NO_TAIL)).stubbed
    [file_id] = stubbed.file_ids
    return file_id
