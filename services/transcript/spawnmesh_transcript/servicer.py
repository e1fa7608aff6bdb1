"""TranscriptService on the wire."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from spawnmesh.transcript.v1 import tenant_pb2 as tenant_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2_grpc as pb_grpc
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript import deletion, operations, tenants, windows
from spawnmesh_transcript.announcements import Announcements
from spawnmesh_transcript.append_queue import AppendQueue
from spawnmesh_transcript.appending import append_entries
from spawnmesh_transcript.follow import Followers
from spawnmesh_transcript.metrics import TierMetrics
from spawnmesh_transcript.parse import (
    parse_claim,
    parse_fence,
    parse_filter,
    parse_fork,
    parse_idempotency_key,
    parse_key,
    parse_parent,
    parse_policy,
    parse_position,
    parse_tail,
    parse_writer,
    readable_key,
)
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.render import (
    render_appended,
    render_context,
    render_fence,
    render_head,
    render_news,
    render_page,
)
from spawnmesh_transcript.tenants import Policies

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE_SIZE = 100


class TranscriptServicer(pb_grpc.TranscriptServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(
        self,
        database: Database,
        queue: AppendQueue,
        payloads: Payloads,
        policies: Policies,
        announcements: Announcements,
        followers: Followers,
        metrics: TierMetrics,
    ) -> None:
        self._database = database
        self._queue = queue
        self._payloads = payloads
        self._policies = policies
        self._announcements = announcements
        self._followers = followers
        self._metrics = metrics

    async def PrepareTenant(
        self, request: tenant_pb.PrepareTenantRequest, context: Context
    ) -> tenant_pb.PrepareTenantResponse:
        tenant_id = current_caller().tenant_id
        policy = await tenants.prepare_tenant(self._database, tenant_id, parse_policy(request))
        self._policies.learn(tenant_id, policy)
        return tenant_pb.PrepareTenantResponse(settings_version=policy.settings_version)

    async def PurgeTenant(
        self, request: tenant_pb.PurgeTenantRequest, context: Context
    ) -> tenant_pb.PurgeTenantResponse:
        purged = await tenants.purge_tenant(self._database, current_caller().tenant_id, request.settings_version)
        return tenant_pb.PurgeTenantResponse(
            done=purged.is_done, deleted_transcript_count=purged.transcript_count, deleted_row_count=purged.row_count
        )

    async def CreateTranscript(
        self, request: pb.CreateTranscriptRequest, context: Context
    ) -> pb.CreateTranscriptResponse:
        caller = current_caller()
        head = await operations.create_transcript(
            self._database,
            self._payloads,
            parse_key(request.session_id, caller),
            parse_fork(request),
            parent_session_id=parse_parent(request),
            service=caller.service,
        )
        return pb.CreateTranscriptResponse(head=render_head(head))

    async def DeleteTranscript(
        self, request: pb.DeleteTranscriptRequest, context: Context
    ) -> pb.DeleteTranscriptResponse:
        key = parse_key(request.session_id, current_caller())
        await deletion.delete_transcript(self._database, self._payloads, key)
        self._announcements.changed(key)
        return pb.DeleteTranscriptResponse()

    async def AcquireWriter(self, request: pb.AcquireWriterRequest, context: Context) -> pb.AcquireWriterResponse:
        caller = current_caller()
        head = await operations.acquire_writer(
            self._database, parse_key(request.session_id, caller), parse_claim(request.claim, caller)
        )
        return pb.AcquireWriterResponse(head=render_head(head))

    async def ReleaseWriter(self, request: pb.ReleaseWriterRequest, context: Context) -> pb.ReleaseWriterResponse:
        caller = current_caller()
        head = await operations.release_writer(
            self._database, parse_key(request.session_id, caller), parse_claim(request.claim, caller)
        )
        return pb.ReleaseWriterResponse(head=render_head(head))

    async def AppendEntries(self, request: pb.AppendEntriesRequest, context: Context) -> pb.AppendEntriesResponse:
        caller = current_caller()
        key = parse_key(request.session_id, caller)
        appended = await append_entries(
            self._queue,
            self._payloads,
            self._policies,
            key,
            request.entries,
            idempotency_key=parse_idempotency_key(request),
            writer=parse_writer(request, caller),
        )
        self._announcements.changed(key)
        return render_appended(appended)

    async def OpenWindow(self, request: pb.OpenWindowRequest, context: Context) -> pb.OpenWindowResponse:
        caller = current_caller()
        fence = await windows.open_window(
            self._database, parse_key(request.session_id, caller), parse_claim(request.claim, caller)
        )
        return pb.OpenWindowResponse(fence=render_fence(fence))

    async def CloseWindow(self, request: pb.CloseWindowRequest, context: Context) -> pb.CloseWindowResponse:
        caller = current_caller()
        fence = await windows.close_window(
            self._database,
            self._payloads,
            parse_key(request.session_id, caller),
            parse_claim(request.claim, caller),
            parse_fence(request.fence),
        )
        return pb.CloseWindowResponse(fence=render_fence(fence))

    async def ListEntries(self, request: pb.ListEntriesRequest, context: Context) -> pb.ListEntriesResponse:
        page = await operations.list_entries(
            self._database,
            self._payloads,
            await readable_key(self._database, request.session_id, current_caller()),
            parse_position(request),
            parse_filter(request.filter),
            page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        )
        return render_page(page)

    async def FollowEntries(
        self, request: pb.FollowEntriesRequest, context: Context
    ) -> AsyncIterator[pb.FollowEntriesResponse]:
        key = parse_key(request.session_id, current_caller())
        following = self._followers.follow(
            key, parse_filter(request.filter), after_seq=request.after_seq, incarnation=request.incarnation
        )
        async with aclosing(following):
            async for news in following:
                yield render_news(news)

    async def AssembleContext(self, request: pb.AssembleContextRequest, context: Context) -> pb.AssembleContextResponse:
        assembled = await operations.assemble_context(
            self._database,
            self._payloads,
            parse_key(request.session_id, current_caller()),
            token_budget=request.token_budget - request.reserved_token_count,
            accompanying_texts=request.accompanying_texts,
            model=request.model,
            tail=parse_tail(request.fresh_tail),
        )
        self._metrics.stubbed(sum(result.size_bytes for result in assembled.stubbed))
        return render_context(
            assembled,
            token_budget=request.token_budget,
            reserved_token_count=request.reserved_token_count,
        )
