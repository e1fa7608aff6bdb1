"""AttachmentBlobService over gRPC: reads requests, has them done, renders answers."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from grpc import aio
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceServicer
from spawnmesh_runtime.caller import CallerKind, current_caller

from spawnmesh_attachment_blob.attaching import Attaching
from spawnmesh_attachment_blob.parse import parse_items, parse_limits, parse_session_id, parse_set_id
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.render import render_set
from spawnmesh_attachment_blob.staging import Staging
from spawnmesh_attachment_blob.tenants import Tenants

Context = aio.ServicerContext[Any, Any]


def _session_alone() -> str | None:
    """The one session whose sets the caller may see; None for a caller who may see all of the tenant's."""
    caller = current_caller()
    return caller.session_id if caller.kind is CallerKind.RUN else None


class AttachmentBlobServicer(AttachmentBlobServiceServicer):
    """One method for each RPC; the tenant is always the caller's."""

    def __init__(
        self, tenants: Tenants, staging: Staging, attaching: Attaching, removal: Removal, reading: Reading
    ) -> None:
        self._tenants = tenants
        self._staging = staging
        self._attaching = attaching
        self._removal = removal
        self._reading = reading

    async def PrepareTenant(self, request: pb.PrepareTenantRequest, context: Context) -> pb.PrepareTenantResponse:
        limits = parse_limits(request.limits)
        version = await self._tenants.prepare(current_caller().tenant_id, request.settings_version, limits)
        return pb.PrepareTenantResponse(settings_version=version)

    async def StageSet(self, request: pb.StageSetRequest, context: Context) -> pb.StageSetResponse:
        set_id, session_id = parse_set_id(request.set_id), parse_session_id(request.session_id)
        items = parse_items(request.items)
        staged = await self._staging.stage(current_caller().tenant_id, set_id, session_id, items)
        return pb.StageSetResponse(set=render_set(staged))

    async def AttachSet(self, request: pb.AttachSetRequest, context: Context) -> pb.AttachSetResponse:
        attached = await self._attaching.attach(current_caller().tenant_id, parse_set_id(request.set_id))
        return pb.AttachSetResponse(set=render_set(attached))

    async def ReleaseSet(self, request: pb.ReleaseSetRequest, context: Context) -> pb.ReleaseSetResponse:
        count = await self._removal.release(current_caller().tenant_id, parse_set_id(request.set_id))
        return pb.ReleaseSetResponse(deleted_object_count=count)

    async def GetSet(self, request: pb.GetSetRequest, context: Context) -> pb.GetSetResponse:
        found = await self._reading.get(current_caller().tenant_id, parse_set_id(request.set_id), _session_alone())
        return pb.GetSetResponse(set=render_set(found))

    async def ReadFile(self, request: pb.ReadFileRequest, context: Context) -> AsyncIterator[pb.ReadFileResponse]:
        tenant_id, set_id = current_caller().tenant_id, parse_set_id(request.set_id)
        async with aclosing(self._reading.read(tenant_id, set_id, request.name, _session_alone())) as pieces:
            async for piece in pieces:
                yield pb.ReadFileResponse(data=piece)
