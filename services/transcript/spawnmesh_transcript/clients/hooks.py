"""Calls of the hook service: before and after compactions."""

from collections.abc import Iterable

from spawnmesh.hook.v1 import compaction_pb2, hook_service_pb2, observed_pb2
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer

_DISPATCH_SECONDS = 600.0


async def dispatch_before_compaction(
    hooks: Peer, tenant_id: str, event: compaction_pb2.BeforeCompactionEvent
) -> compaction_pb2.DispatchBeforeCompactionResponse:
    """Ask the tenant's plugins whether and how to compact.

    Raises PLUGIN_FAILED, and the service's MeshError.
    """
    request = compaction_pb2.DispatchBeforeCompactionRequest(event=event)
    with impersonate(tenant_id):
        return await hooks.unary(
            HookServiceStub(hooks.channel).DispatchBeforeCompaction,
            request,
            timeout_seconds=_DISPATCH_SECONDS,
        )


async def publish_events(hooks: Peer, tenant_id: str, events: Iterable[observed_pb2.ObservedEvent]) -> None:
    """Store events in the hook service, which delivers them to observers.

    Raises the service's MeshError.
    """
    request = hook_service_pb2.PublishEventsRequest(events=events)
    with impersonate(tenant_id):
        await hooks.unary(HookServiceStub(hooks.channel).PublishEvents, request)
