"""TenantParticipantService of every service that keeps something of tenants."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpc import aio
from spawnmesh.tenancy.v1 import tenant_participant_service_pb2 as pb
from spawnmesh.tenancy.v1 import tenant_status_pb2 as status_pb
from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import (
    TenantParticipantServiceServicer,
    add_TenantParticipantServiceServicer_to_server,
)

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.tenant_participant import Participation, TenantData, TenantParticipant
from spawnmesh_postgres.tenant_tables import MAX_COUNT

Context = aio.ServicerContext[Any, Any]


class TenantParticipantServicer(TenantParticipantServiceServicer):
    """The servicer of TenantParticipantService.

    `caller_tenant_id` returns the tenant of the call that is being served.
    """

    def __init__(self, participant: TenantParticipant, caller_tenant_id: Callable[[], str]) -> None:
        self._participant = participant
        self._caller_tenant_id = caller_tenant_id

    async def PrepareTenant(
        self, request: pb.PrepareTenantRequest, context: Context
    ) -> pb.PrepareTenantResponse:
        version = await self._participant.prepare(
            self._caller_tenant_id(), request.settings_version, request.settings
        )
        return pb.PrepareTenantResponse(settings_version=version)

    async def PurgeTenant(self, request: pb.PurgeTenantRequest, context: Context) -> pb.PurgeTenantResponse:
        result = await self._participant.purge(self._caller_tenant_id(), request.settings_version)
        return pb.PurgeTenantResponse(
            done=result.is_done,
            removed_items=[pb.RemovedItems(kind=kind, count=count) for kind, count in result.removed.items()],
        )

    async def GetTenantStatus(
        self, request: pb.GetTenantStatusRequest, context: Context
    ) -> pb.GetTenantStatusResponse:
        participation = await self._participant.get_status(self._caller_tenant_id())
        return pb.GetTenantStatusResponse(status=_render_status(participation))


def add_tenant_participant(
    server: aio.Server, database: Database, data: TenantData, caller_tenant_id: Callable[[], str]
) -> None:
    """Add the TenantParticipantService of a service with these data of tenants."""
    servicer = TenantParticipantServicer(TenantParticipant(database, data), caller_tenant_id)
    add_TenantParticipantServiceServicer_to_server(servicer, server)


def render_stored(counts: Mapping[str, int]) -> Iterable[status_pb.StoredItems]:
    """Render counts by kind, of which MAX_COUNT + 1 means more than MAX_COUNT."""
    return [
        status_pb.StoredItems(kind=kind, count=min(count, MAX_COUNT), has_more=count > MAX_COUNT)
        for kind, count in counts.items()
    ]


def _render_status(participation: Participation) -> status_pb.TenantStatus:
    status = status_pb.TenantStatus(
        state=status_pb.ParticipationState.Value(f"PARTICIPATION_STATE_{participation.state}"),
        settings_version=participation.settings_version,
        stored_items=render_stored(participation.stored),
    )
    if participation.storage is not None:
        status.storage.CopyFrom(participation.storage)
    if participation.purge_begin_time is not None:
        status.purge_begin_time.FromDatetime(participation.purge_begin_time)
    if participation.purge_end_time is not None:
        status.purge_end_time.FromDatetime(participation.purge_end_time)
    return status
