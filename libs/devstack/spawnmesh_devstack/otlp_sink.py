"""Receive traces over OTLP/gRPC and append them to a file. Serve the traces of the file over HTTP.
Pass traces, metrics and log records on to another receiver, if there is one.

The sink shares the machine with the processes that it observes, so it does not parse what it
receives; a reader of the file does (`span_file`).

Usage: `python -m spawnmesh_devstack.otlp_sink`
"""

import argparse
import asyncio
import os
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import BinaryIO, TypeAlias

import grpc

from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.span_file import framed
from spawnmesh_devstack.trace_server import authorization_in, start_trace_server

_STOP_SECONDS = 1.0
_FORWARD_SECONDS = 5.0
_MAX_WAITING = 1000
_RECONNECT = [("grpc.max_reconnect_backoff_ms", 2_000)]  # Otherwise up to two minutes.
_NOTHING = b""  # The empty response of each service.

GenericHandler: TypeAlias = "grpc.GenericRpcHandler[bytes, bytes]"


class Forwarder:
    """Passes requests on in their order, one at a time. It drops those that the other receiver does
    not take, and new ones while too many wait, so that no process of the mesh waits for it.
    """

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_RECONNECT)
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_MAX_WAITING)

    def add(self, method: str, request: bytes) -> None:
        """Pass the request on, later."""
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait((method, request))

    async def forward_forever(self) -> None:
        """Send what waits, until cancelled."""
        async with self._channel:
            while True:
                method, request = await self._waiting.get()
                with suppress(grpc.aio.AioRpcError):
                    call = self._channel.unary_unary(method, _unchanged, _unchanged)
                    await call(request, timeout=_FORWARD_SECONDS)
                self._waiting.task_done()

    async def flush(self) -> None:
        """Return when nothing waits, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._waiting.join()


def _unchanged(message: bytes) -> bytes:
    return message


def _service(name: str, file: BinaryIO | None, forwarder: Forwarder | None) -> GenericHandler:
    """Return an OTLP service whose requests stay bytes. A file gets each request, flushed to the
    operating system, before the answer.
    """
    full_name = f"opentelemetry.proto.collector.{name}"

    async def export(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        if file is not None:
            file.write(framed(request))
            file.flush()
        if forwarder is not None:
            forwarder.add(f"/{full_name}/Export", request)
        return _NOTHING

    return grpc.method_handlers_generic_handler(
        full_name, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )


async def serve(arguments: argparse.Namespace, file: BinaryIO) -> None:
    """Serve on loopback until SIGTERM or SIGINT. Traces can be read when spans can be sent."""
    reading = await start_trace_server(
        arguments.traces_port, arguments.file, authorization_in(arguments.headers_file)
    )
    server = grpc.aio.server()
    forwarder = Forwarder(arguments.forward) if arguments.forward else None
    traces = _service("trace.v1.TraceService", file, forwarder)
    others = [_service(f"{name}.v1.{name.title()}Service", None, forwarder) for name in ("metrics", "logs")]
    server.add_generic_rpc_handlers((traces, *others))
    server.add_insecure_port(f"{LOOPBACK}:{arguments.port}")
    stop = asyncio.Event()
    for number in (SIGTERM, SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    forwarding = asyncio.create_task(forwarder.forward_forever()) if forwarder else None
    await server.start()
    await stop.wait()
    await server.stop(_STOP_SECONDS)
    if forwarder is not None and forwarding is not None:
        await forwarder.flush()
        forwarding.cancel()
    await reading.cleanup()


def main() -> None:
    """The command line: the ports to listen on, the file to append to (0600), the file with the
    headers of those who may read traces, and another receiver.
    """
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.otlp_sink", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--traces-port", type=int, required=True)
    parser.add_argument("--headers-file", type=Path, required=True)
    parser.add_argument("--forward", metavar="HOST:PORT", help="pass everything on to this receiver")
    arguments = parser.parse_args()
    descriptor = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        asyncio.run(serve(arguments, file))


if __name__ == "__main__":
    main()
