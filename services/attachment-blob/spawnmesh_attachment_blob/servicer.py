"""AttachmentBlobService over gRPC: reads requests, has them done, renders answers."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from grpc import aio
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceServicer
from spawnmesh_runtime.caller import CallerKind, current_caller

from spawnmesh_attachment_blob.attaching import Attaching
from spawnmesh_attachment_blob.collecting import Collecting
from spawnmesh_attachment_blob.domain.uploads import UploadKey
from spawnmesh_attachment_blob.parse import (
    parse_page_token,
    parse_policy,
    parse_range,
    parse_session_id,
    parse_set,
    parse_set_id,
    parse_upload,
    parse_upload_id,
)
from spawnmesh_attachment_blob.purging import Purging
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.render import render_counts, render_set, render_upload, timestamp
from spawnmesh_attachment_blob.staging import Staging
from spawnmesh_attachment_blob.tenants import Tenants
from spawnmesh_attachment_blob.uploading import Uploading

Context = aio.ServicerContext[Any, Any]

_PAGE_SIZE = 50


def _session_alone() -> str | None:
    """The one session whose sets the caller may see; None for a caller who may see all of the tenant's."""
    caller = current_caller()
    return caller.session_id if caller.kind is CallerKind.RUN else None


@dataclass(frozen=True, slots=True)
class Parts:
    """What does the work behind the RPCs."""

    tenants: Tenants
    staging: Staging
    attaching: Attaching
    removal: Removal
    reading: Reading
    uploading: Uploading
    collecting: Collecting
    purging: Purging


class AttachmentBlobServicer(AttachmentBlobServiceServicer):
    """One method for each RPC; the tenant is the caller's, except where an operator names one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def PrepareTenant(self, request: pb.PrepareTenantRequest, context: Context) -> pb.PrepareTenantResponse:
        policy = parse_policy(request.limits)
        version = await self._parts.tenants.prepare(current_caller().tenant_id, request.settings_version, policy)
        return pb.PrepareTenantResponse(settings_version=version)

    async def PurgeTenant(self, request: pb.PurgeTenantRequest, context: Context) -> pb.PurgeTenantResponse:
        purged = await self._parts.purging.purge(current_caller().tenant_id, request.settings_version)
        return pb.PurgeTenantResponse(
            done=purged.done, deleted_object_count=purged.objects, deleted_row_count=purged.rows
        )

    async def UploadFile(
        self, request_iterator: AsyncIterator[pb.UploadFileRequest], context: Context
    ) -> pb.UploadFileResponse:
        caller = current_caller()
        async with aclosing(parse_upload(request_iterator)) as messages:
            upload = await self._parts.uploading.receive(caller.tenant_id, caller.session_id, messages)
        return pb.UploadFileResponse(upload=render_upload(upload))

    async def GetUpload(self, request: pb.GetUploadRequest, context: Context) -> pb.GetUploadResponse:
        caller = current_caller()
        key = UploadKey(caller.session_id, parse_upload_id(request.upload_id))
        found = await self._parts.uploading.get(caller.tenant_id, key)
        return pb.GetUploadResponse(upload=render_upload(found))

    async def StageSet(self, request: pb.StageSetRequest, context: Context) -> pb.StageSetResponse:
        staged = await self._parts.staging.stage(current_caller().tenant_id, parse_set(request))
        return pb.StageSetResponse(set=render_set(staged))

    async def AttachSet(self, request: pb.AttachSetRequest, context: Context) -> pb.AttachSetResponse:
        attached = await self._parts.attaching.attach(current_caller().tenant_id, parse_set_id(request.set_id))
        return pb.AttachSetResponse(set=render_set(attached))

    async def ReleaseSet(self, request: pb.ReleaseSetRequest, context: Context) -> pb.ReleaseSetResponse:
        count = await self._parts.removal.release(current_caller().tenant_id, parse_set_id(request.set_id))
        return pb.ReleaseSetResponse(deleted_object_count=count)

    async def GetSet(self, request: pb.GetSetRequest, context: Context) -> pb.GetSetResponse:
        set_id = parse_set_id(request.set_id)
        found = await self._parts.reading.get(current_caller().tenant_id, set_id, _session_alone())
        return pb.GetSetResponse(set=render_set(found))

    async def ListSets(self, request: pb.ListSetsRequest, context: Context) -> pb.ListSetsResponse:
        session_id = parse_session_id(request.session_id) if request.session_id else ""
        before, size = parse_page_token(request.page_token), request.page_size or _PAGE_SIZE
        found = await self._parts.reading.list_sets(current_caller().tenant_id, session_id, before, size + 1)
        token = found[size - 1].set_id if len(found) > size else ""
        return pb.ListSetsResponse(sets=[render_set(one) for one in found[:size]], next_page_token=token)

    async def ReadFile(self, request: pb.ReadFileRequest, context: Context) -> AsyncIterator[pb.ReadFileResponse]:
        tenant_id, set_id, wanted = current_caller().tenant_id, parse_set_id(request.set_id), parse_range(request)
        reading = self._parts.reading.read(tenant_id, set_id, request.name, _session_alone(), wanted)
        async with aclosing(reading) as pieces:
            async for piece in pieces:
                yield pb.ReadFileResponse(data=piece)

    async def CreateDownloadUrl(
        self, request: pb.CreateDownloadUrlRequest, context: Context
    ) -> pb.CreateDownloadUrlResponse:
        tenant_id, set_id = current_caller().tenant_id, parse_set_id(request.set_id)
        url, expire_time = await self._parts.reading.download_url(tenant_id, set_id, request.name)
        return pb.CreateDownloadUrlResponse(url=url, expire_time=timestamp(expire_time))

    async def CollectGarbage(self, request: pb.CollectGarbageRequest, context: Context) -> pb.CollectGarbageResponse:
        counts = await self._parts.collecting.collect(request.tenant_id, dry_run=request.dry_run)
        return pb.CollectGarbageResponse(counts=render_counts(counts))
