"""Receive traces over OTLP/gRPC and append them to a file; discard metrics and log records. Serve
the traces of the file over HTTP.

The sink shares the machine with the processes that it observes, so it does not parse what it
receives; a reader of the file does (`span_file`).

Usage: `python -m spawnmesh_devstack.otlp_sink`
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import BinaryIO

import grpc

from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.span_file import framed
from spawnmesh_devstack.trace_server import authorization_in, start_trace_server

_STOP_SECONDS = 1.0
_NOTHING = b""  # The empty response of each service.

Answer = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]


def appending_to(file: BinaryIO) -> Answer:
    """Return a handler that answers an export once it is flushed to the operating system."""

    async def export(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        file.write(framed(request))
        file.flush()
        return _NOTHING

    return export


async def forget(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
    """Discard metrics and log records, so that exporters do not report errors."""
    return _NOTHING


def _service(name: str, export: Answer) -> "grpc.GenericRpcHandler[bytes, bytes]":
    """Return an OTLP service whose requests stay bytes."""
    full_name = f"opentelemetry.proto.collector.{name}"
    return grpc.method_handlers_generic_handler(
        full_name, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )


async def serve(arguments: argparse.Namespace, file: BinaryIO) -> None:
    """Serve on loopback until SIGTERM or SIGINT. Traces can be read when spans can be sent."""
    reading = await start_trace_server(
        arguments.traces_port, arguments.file, authorization_in(arguments.headers_file)
    )
    server = grpc.aio.server()
    traces = _service("trace.v1.TraceService", appending_to(file))
    forgotten = [_service(f"{name}.v1.{name.title()}Service", forget) for name in ("metrics", "logs")]
    server.add_generic_rpc_handlers((traces, *forgotten))
    server.add_insecure_port(f"{LOOPBACK}:{arguments.port}")
    stop = asyncio.Event()
    for number in (SIGTERM, SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    await stop.wait()
    await server.stop(_STOP_SECONDS)
    await reading.cleanup()


def main() -> None:
    """The command line: the ports to listen on, the file to append to (0600), and the file with the
    headers of those who may read traces.
    """
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.otlp_sink", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--traces-port", type=int, required=True)
    parser.add_argument("--headers-file", type=Path, required=True)
    arguments = parser.parse_args()
    descriptor = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        asyncio.run(serve(arguments, file))


if __name__ == "__main__":
    main()
