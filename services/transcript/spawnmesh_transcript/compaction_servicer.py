"""CompactionService on the wire."""

from typing import Any

import grpc
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import compaction_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller, CallerKind, current_caller

from spawnmesh_transcript.compacting import Asking, Compactor
from spawnmesh_transcript.domain.refusals import run_without_claim
from spawnmesh_transcript.expanding import expand_summary
from spawnmesh_transcript.parse import parse_claim, parse_key, parse_tail, readable_key
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.render import render_entry, render_head

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE_SIZE = 100


class CompactionServicer(pb_grpc.CompactionServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(self, database: Database, payloads: Payloads, compactor: Compactor) -> None:
        self._database = database
        self._payloads = payloads
        self._compactor = compactor

    async def CompactTranscript(
        self, request: pb.CompactTranscriptRequest, context: Context
    ) -> pb.CompactTranscriptResponse:
        caller = current_caller()
        key = parse_key(request.session_id, caller)
        done = await self._compactor.compact(
            key, _asking(request, caller), request.models, parse_tail(request.fresh_tail)
        )
        response = pb.CompactTranscriptResponse(
            refused_by=done.refused_by, refusal=done.refusal, head=render_head(done.head)
        )
        if done.summary:
            render_entry(done.summary, response.summary)
        return response

    async def ExpandSummary(self, request: pb.ExpandSummaryRequest, context: Context) -> pb.ExpandSummaryResponse:
        if "\x00" in request.entry_id:
            raise not_found("summary", request.entry_id)
        expanded = await expand_summary(
            self._database,
            self._payloads,
            await readable_key(self._database, request.session_id, current_caller()),
            request.entry_id,
            after_seq=request.after_seq,
            page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        )
        response = pb.ExpandSummaryResponse(next_after_seq=expanded.next_after_seq, has_more=expanded.has_more)
        for entry in expanded.entries:
            render_entry(entry, response.entries.add())
        return response


def _asking(request: pb.CompactTranscriptRequest, caller: Caller) -> Asking:
    if request.HasField("claim"):
        return Asking(parse_claim(request.claim, caller), "")
    if caller.kind is CallerKind.RUN:
        raise run_without_claim()
    return Asking(None, caller.subject)
