"""Ids and names of the mesh, for the completion of a shell.

Without a mesh that answers in time, nothing is completed and nothing is printed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

import typer
from spawnmesh_client.agents import Agents
from spawnmesh_client.approval_views import Approval
from spawnmesh_client.approvals import Approvals
from spawnmesh_client.models import Models
from spawnmesh_client.operations import Operations
from spawnmesh_client.plugins import Plugins
from spawnmesh_client.schedules import Schedules
from spawnmesh_client.webhooks import Webhooks
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli.run import settings_of, with_connected
from spawnmesh_command.cli.show import one_line, run_state

_SECONDS = 2.0
_MAX_FOUND = 100

Found = list[tuple[str, str]]
"""Words, each with a line that says what it is."""
Complete = Callable[[typer.Context, str], Found]


def _completer(read: Callable[[WireMesh], Awaitable[Found]]) -> Complete:
    def complete(context: typer.Context, incomplete: str) -> Found:
        async def body(mesh: WireMesh) -> Found:
            async with asyncio.timeout(_SECONDS):
                return await read(mesh)

        root = context.find_root()
        given = {name: value for name, value in root.params.items() if value}
        root.obj = given | (root.obj or {})
        try:
            found = with_connected(settings_of(context), body)
        except (MeshError, TimeoutError, OSError):
            return []
        return [(word, one_line(text)) for word, text in found if word.startswith(incomplete)]

    return complete


async def _sessions(mesh: WireMesh) -> Found:
    found: Found = []
    async for one in mesh.sessions(page_size=_MAX_FOUND):
        found.append((one.session_id, f"{run_state(one)} {one.label or one.agent_id}"))
        if len(found) == _MAX_FOUND:
            break
    return found


async def _agents(mesh: WireMesh) -> Found:
    return [(one.agent_id, "agent") for one in await Agents(mesh).list()]


async def _models(mesh: WireMesh) -> Found:
    return [
        (word, "model" if word == one.model else f"alias of {one.model}")
        for one in await Models(mesh).list()
        for word in (one.model, *one.aliases)
    ]


async def _plugins(mesh: WireMesh) -> Found:
    return [(one.name, one.endpoint) for one in await Plugins(mesh).list()]


async def _webhooks(mesh: WireMesh) -> Found:
    return [(one.name, one.url) for one in await Webhooks(mesh).list()]


async def _schedules(mesh: WireMesh) -> Found:
    return [(one.name, one.cron) for one in await Schedules(mesh).list()]


async def _approvals(mesh: WireMesh) -> Found:
    found = [(one.approval_id, _about(one)) async for one in Approvals(mesh).list(state="PENDING")]
    return list(islice(found, _MAX_FOUND))


def _about(approval: Approval) -> str:
    if approval.tool_call is not None:
        return approval.tool_call.tool_name
    return approval.question.text if approval.question is not None else ""


async def _operations(mesh: WireMesh) -> Found:
    found = [(one.name, one.method) async for one in Operations(mesh).list()]
    return list(islice(found, _MAX_FOUND))


sessions = _completer(_sessions)
agents = _completer(_agents)
models = _completer(_models)
plugins = _completer(_plugins)
webhooks = _completer(_webhooks)
schedules = _completer(_schedules)
approvals = _completer(_approvals)
operations = _completer(_operations)
