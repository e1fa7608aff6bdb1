"""The command `spawnmesh hooks relay`, which a coding harness calls when its agent wants to
stop.
"""

import sys
import uuid
from enum import StrEnum
from typing import Annotated

import typer
from spawnmesh.hook.v1 import native_stop_pb2 as pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import settings_of, with_connected

_MAX_EVENT_BYTES = 1024 * 1024


class Harness(StrEnum):
    """The harnesses whose events are understood."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"


_HARNESSES = {Harness.CLAUDE_CODE: pb.NATIVE_HARNESS_CLAUDE_CODE, Harness.CODEX: pb.NATIVE_HARNESS_CODEX}


def relay(
    context: typer.Context,
    harness: Annotated[
        Harness, typer.Option(help="The harness that sends the events.")
    ] = Harness.CLAUDE_CODE,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600, help="Seconds until the agent may stop without an answer.")
    ] = 60.0,
) -> None:
    """Ask the plugins if the agent of a coding harness may stop: event on standard input, answer
    on standard output.

    Errors are printed to standard error, and the agent may stop: the exit code is always 0.
    """
    event = sys.stdin.buffer.read(_MAX_EVENT_BYTES + 1)
    request = pb.RelayNativeStopRequest(
        request_id=uuid.uuid4().hex, harness=_HARNESSES[harness], event_json=event.decode("utf-8", "replace")
    )

    async def body(mesh: WireMesh) -> str:
        hook = mesh.service("hook")
        stub = HookServiceStub(hook.channel)
        return (await hook.unary(stub.RelayNativeStop, request, timeout_seconds=timeout)).output

    try:
        output = with_connected(settings_of(context), body)
    except (MeshError, ValueError, OSError) as error:
        print_error(f"the agent may stop: {error}")
        return
    if output:
        print(output)
