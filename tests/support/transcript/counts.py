"""Transcripts whose tokens are counted by one vocabulary or another."""

import itertools
import secrets
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ROLE_TOOL_RESULT
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary

from tests.support.transcript.fixtures import Session
from tests.support.transcript.operating import result_of

O200K, CL100K = Vocabulary.O200K, Vocabulary.CL100K


# The two vocabularies count it very differently.
TEXT = "నమస్కారం ప్రపంచం ఇది తెలుగులో వ్రాసిన పరీక్ష వాక్యం"


_EPOCHS = itertools.count(1)


async def say(session: Session, *bodies: entry_pb2.EntryBody) -> None:
    """Append entry by entry: answers and results as a run, others as the session service."""
    claim = await session.acquire(next(_EPOCHS))
    for body in bodies:
        is_of_run = body.message.role in (ROLE_ASSISTANT, ROLE_TOOL_RESULT)
        await session.append([body], claim=claim if is_of_run else None)


async def set_vocabulary(session: Session, version: int, vocabulary: str, **more: Any) -> None:
    await session.prepare_tenant(version, token_vocabulary=vocabulary, **more)


async def recount(
    session: Session, *, dry_run: bool = False, token: str = ""
) -> storage_pb.RecountTranscriptResponse:
    """Run an operation of RecountTranscript, and return its response."""
    request = storage_pb.RecountTranscriptRequest(
        session_id=session.session_id, dry_run=dry_run, request_id=secrets.token_hex(8)
    )
    peer = session.service.peer
    with use_token(token or session.client_token()):
        started = await peer.unary(
            StorageServiceStub(peer.channel).RecountTranscript, request, timeout_seconds=60
        )
    return await result_of(session, started, storage_pb.RecountTranscriptResponse)
