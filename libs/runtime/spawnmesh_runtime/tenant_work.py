"""Background work for a tenant: in its name, and in a span that continues the stored trace."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.telemetry import continue_trace, traced

T = TypeVar("T")


async def run_for_tenant(
    tenant_id: str, span_name: str, traceparent: str, work: Callable[[], Awaitable[T]]
) -> T:
    """Call `work`: its calls carry this process's token for the tenant."""
    with continue_trace(traceparent), impersonate(tenant_id):
        async with traced(span_name):
            return await work()
