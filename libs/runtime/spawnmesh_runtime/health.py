"""Health checks on a separate port without TLS, for the kubelet.

The kubelet cannot present the certificate that the service itself may require.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.metrics import Meter
from spawnmesh_core.errors import not_found

from spawnmesh_runtime.interceptors.log import call_durations
from spawnmesh_runtime.interceptors.observe import DeniedCalls
from spawnmesh_runtime.open_services import MAX_REQUEST_BYTES, OpenServices
from spawnmesh_runtime.server_options import open_server_options
from spawnmesh_runtime.settings import ProcessSettings

LIVE = "live"
"""This health service is SERVING while the event loop runs.

The unnamed one is SERVING while the process accepts calls and every check of its own passes. Each
check and each dependency is a health service of its name.
"""

_STATUS = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # Not in the stubs.
    """The health services of one port.

    Unlike the library's servicer, it keeps no name that a caller sends, and no caller that reads
    nothing delays a new status.
    """

    def __init__(self) -> None:
        self._statuses = {"": _STATUS.SERVING}
        self._changed = asyncio.Event()
        self._is_shutting_down = False

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a health service, unless the process shuts down."""
        if not self._is_shutting_down:
            self._set(service, status)

    async def enter_graceful_shutdown(self) -> None:
        """Set every health service to NOT_SERVING for good."""
        self._is_shutting_down = True
        for service in self._statuses:
            self._set(service, _STATUS.NOT_SERVING)

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status. Raises NOT_FOUND for a health service that does not exist."""
        return _STATUS(status=self._status_of(request.service))

    async def Watch(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        """Yield the status and each change of it; the last one of several that come together.

        Raises NOT_FOUND for a health service that does not exist. The protocol also lets a server
        answer SERVICE_UNKNOWN and wait. But a client whose watch ends after an answer starts it
        again at once, and one that is refused waits longer each time.
        """
        sent = None
        while True:
            changed, status = self._changed, self._status_of(request.service)
            if status == sent:
                await changed.wait()
            else:
                sent = status
                yield _STATUS(status=status)

    async def List(self, request: Any, context: Any) -> Any:
        """Raise NOT_FOUND: the names are not for callers without a token, and no probe asks."""
        raise not_found("RPC", "List")

    def _status_of(self, service: str) -> Any:
        status = self._statuses.get(service)
        if status is None:
            raise not_found("health service", service)
        return status

    def _set(self, service: str, status: Any) -> None:
        if self._statuses.get(service) != status:
            self._statuses[service] = status
            self._changed.set()
            self._changed = asyncio.Event()


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
async def open_health(
    service: str, settings: ProcessSettings, meter: Meter, denied: DeniedCalls
) -> AsyncIterator[Health]:
    """Answer health checks on `health_listen` during the block. Without it nothing is served.

    Refused checks are measured, and logged as the budget of `denied` allows. Raises SystemExit with
    one line if the address cannot be bound.
    """
    state = Health()
    await state.servicer.set(LIVE, _STATUS.SERVING)
    await state.not_ready()
    address = settings.health_listen
    if not address:
        yield state
        return
    options = [*open_server_options(settings), ("grpc.max_receive_message_length", MAX_REQUEST_BYTES)]
    server = grpc.aio.server(options=options)
    health_pb2_grpc.add_HealthServicer_to_server(
        state.servicer, OpenServices(server, service, settings, call_durations(meter), denied)
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
