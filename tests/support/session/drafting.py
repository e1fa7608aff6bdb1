"""Drafts in the transcript of a held run."""

from typing import Any
from uuid import uuid4

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text, TokenUsage
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer


async def draft(
    transcript: Peer, held: run_pb.ClaimedRun, text: str, *, key: str = ""
) -> run_pb.FinalizeRunRequest:
    """Append the text as the run's draft once for each key; build the request that offers it.

    The first long text starts a worker process of the service, which takes long on a busy machine.
    """
    stub: Any = TranscriptServiceStub(transcript.channel)
    claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=text))])
    with use_token(held.run_token):
        acquire = transcript_pb.AcquireWriterRequest(session_id=held.session.session_id, claim=claim)
        await transcript.unary(stub.AcquireWriter, acquire, timeout_seconds=60)
        append = transcript_pb.AppendEntriesRequest(
            session_id=held.session.session_id,
            claim=claim,
            request_id=key or uuid4().hex,
            entries=[EntryBody(message=message)],
        )
        appended = await transcript.unary(stub.AppendEntries, append, timeout_seconds=60)
    entry_id = appended.entries[0].entry_id
    usage = TokenUsage(input_token_count=7, output_token_count=3)
    return run_pb.FinalizeRunRequest(
        epoch=held.run.epoch, draft_entry_id=entry_id, draft_text=text, usage=usage
    )


async def entries_of(transcript: Peer, held: run_pb.ClaimedRun) -> list[Entry]:
    """The session's transcript, as its run reads it."""
    stub: Any = TranscriptServiceStub(transcript.channel)
    request = transcript_pb.ListEntriesRequest(session_id=held.session.session_id, page_size=500)
    with use_token(held.run_token):
        return list((await transcript.unary(stub.ListEntries, request, timeout_seconds=60)).entries)
