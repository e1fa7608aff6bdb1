"""WatchCallLimits. Streams the call limits of all tenants, and changes as they commit."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.session.v1 import tenant_service_pb2 as pb

from spawnmesh_session.rpc.dependencies import Dependencies


async def watch_call_limits(
    request: pb.WatchCallLimitsRequest, deps: Dependencies
) -> AsyncGenerator[pb.WatchCallLimitsResponse, None]:
    """Yield pages of limits; a page without limits says that nothing has changed."""
    async with aclosing(deps.call_limits.changes()) as pages:
        async for changes, is_complete in pages:
            limits = [pb.TenantCallLimits(tenant_id=tenant_id, limits=own) for tenant_id, own in changes]
            yield pb.WatchCallLimitsResponse(limits=limits, is_complete=is_complete)
