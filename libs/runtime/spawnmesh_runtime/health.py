"""Health checks on a separate port without TLS, for the kubelet.

The kubelet cannot present the certificate that the service itself may require.
"""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.metrics import Meter
from spawnmesh_core.errors import not_found

from spawnmesh_runtime.channel_options import open_server_options
from spawnmesh_runtime.interceptors.log import call_durations
from spawnmesh_runtime.open_services import OpenServices
from spawnmesh_runtime.settings import ProcessSettings

LIVE = "live"
"""This health service is SERVING while the event loop runs.

The unnamed one is SERVING while the process accepts calls and every check of its own passes. Each
check and each dependency is a health service of its name.
"""

_STATUS = health_pb2.HealthCheckResponse


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc, name-defined]
    """The library's servicer, whose refusals have a reason."""

    def __init__(self) -> None:
        super().__init__()
        self._names = {""}

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a health service."""
        self._names.add(service)
        await super().set(service, status)

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status. Raises NOT_FOUND for a health service that does not exist."""
        if request.service not in self._names:
            raise not_found("health service", request.service)
        return await super().Check(request, context)

    async def List(self, request: Any, context: Any) -> Any:
        """Raise NOT_FOUND: the names are not for callers without a token, and no probe asks."""
        raise not_found("RPC", "List")


class Health:
    """The health of a process. It starts live and not ready."""

    def __init__(self) -> None:
        self.servicer = HealthServicer()
        self._accepts_calls = False
        self._failed_checks: set[str] = set()
        self._servicers_of_dependencies = [self.servicer]

    async def ready(self) -> None:
        """Report that the process accepts calls."""
        self._accepts_calls = True
        await self._report()

    async def not_ready(self) -> None:
        """Report that callers must use another replica."""
        self._accepts_calls = False
        await self._report()

    async def passed(self, check: str) -> None:
        """Report that the check of this name passes."""
        self._failed_checks.discard(check)
        await self.servicer.set(check, _STATUS.SERVING)
        await self._report()

    async def failed(self, check: str) -> None:
        """Report that the check of this name fails. Until it passes, the process is not ready."""
        self._failed_checks.add(check)
        await self.servicer.set(check, _STATUS.NOT_SERVING)
        await self._report()

    def report_dependencies_to(self, servicer: HealthServicer) -> None:
        """Report the dependencies to this health servicer, too, from their next change on."""
        self._servicers_of_dependencies.append(servicer)

    async def dependency(self, name: str, *, is_up: bool) -> None:
        """Report the state of a dependency.

        It does not change the readiness: a replica whose dependency is down still answers, and says
        why it cannot do the work.
        """
        status = _STATUS.SERVING if is_up else _STATUS.NOT_SERVING
        for servicer in self._servicers_of_dependencies:
            await servicer.set(name, status)

    async def _report(self) -> None:
        is_ready = self._accepts_calls and not self._failed_checks
        await self.servicer.set("", _STATUS.SERVING if is_ready else _STATUS.NOT_SERVING)


@asynccontextmanager
async def open_health(service: str, settings: ProcessSettings, meter: Meter) -> AsyncIterator[Health]:
    """Answer health checks on `health_listen` during the block. Without it nothing is served.

    Refused checks are logged and measured. Raises SystemExit with one line if the address cannot be
    bound.
    """
    state = Health()
    await state.servicer.set(LIVE, _STATUS.SERVING)
    await state.not_ready()
    address = settings.health_listen
    if not address:
        yield state
        return
    server = grpc.aio.server(options=open_server_options(settings))
    health_pb2_grpc.add_HealthServicer_to_server(
        state.servicer, OpenServices(server, service, settings, call_durations(meter))
    )
    try:
        server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is in use" if busy else "the address cannot be bound"
        raise SystemExit(f"{service}: cannot answer health checks on {address}: {why}") from None
    await server.start()
    try:
        yield state
    finally:
        await server.stop(None)
