"""TranscriptService on the wire."""

from typing import Any

import grpc
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2_grpc as pb_grpc
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript import operations
from spawnmesh_transcript.parse import parse_append_claim, parse_claim, parse_fork, parse_idempotency_key, parse_key
from spawnmesh_transcript.prepare import prepare
from spawnmesh_transcript.render import render_appended, render_context, render_entry, render_head

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE_SIZE = 100


class TranscriptServicer(pb_grpc.TranscriptServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def CreateTranscript(
        self, request: pb.CreateTranscriptRequest, context: Context
    ) -> pb.CreateTranscriptResponse:
        caller = current_caller()
        head = await operations.create_transcript(
            self._database, parse_key(request.session_id, caller), parse_fork(request), service=caller.service
        )
        return pb.CreateTranscriptResponse(head=render_head(head))

    async def DeleteTranscript(
        self, request: pb.DeleteTranscriptRequest, context: Context
    ) -> pb.DeleteTranscriptResponse:
        await operations.delete_transcript(self._database, parse_key(request.session_id, current_caller()))
        return pb.DeleteTranscriptResponse()

    async def AcquireWriter(self, request: pb.AcquireWriterRequest, context: Context) -> pb.AcquireWriterResponse:
        caller = current_caller()
        head = await operations.acquire_writer(
            self._database, parse_key(request.session_id, caller), parse_claim(request.claim, caller)
        )
        return pb.AcquireWriterResponse(head=render_head(head))

    async def AppendEntries(self, request: pb.AppendEntriesRequest, context: Context) -> pb.AppendEntriesResponse:
        caller = current_caller()
        key = parse_key(request.session_id, caller)
        claim = parse_append_claim(request, caller)
        appended = await operations.append_entries(
            self._database,
            key,
            await prepare(request.entries),
            idempotency_key=parse_idempotency_key(request),
            claim=claim,
            service=caller.service,
        )
        return render_appended(appended)

    async def ListEntries(self, request: pb.ListEntriesRequest, context: Context) -> pb.ListEntriesResponse:
        entries, head = await operations.list_entries(
            self._database,
            parse_key(request.session_id, current_caller()),
            after_seq=request.after_seq,
            page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        )
        return pb.ListEntriesResponse(entries=map(render_entry, entries), head=render_head(head))

    async def AssembleContext(self, request: pb.AssembleContextRequest, context: Context) -> pb.AssembleContextResponse:
        assembled = await operations.assemble_context(
            self._database, parse_key(request.session_id, current_caller()), token_budget=request.token_budget
        )
        return render_context(assembled)
