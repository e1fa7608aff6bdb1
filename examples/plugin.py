"""Serve a plugin that has one answer revised, register it, and show its part in the answer.

python examples/plugin.py 127.0.0.1:7000 .data/keys/jwks.json demo "Say hello."

The last two arguments are the tenant whose calls it answers, and the task.
"""

import asyncio
import sys
from pathlib import Path

from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_client import Mesh, connect
from spawnmesh_client.resource_views import Grant, HookKind, Plugin
from spawnmesh_plugin import Handlers, go_on, hook, revise
from spawnmesh_plugin.serving import serve
from spawnmesh_plugin.settings import PluginSettings

NAME = "signature"


@hook("before_agent_finalize")
def review(event: BeforeAgentFinalizeEvent) -> FinalizeDecision:
    """Send the first draft back if it has no signature."""
    if event.revision_count == 0 and "-- the clerk" not in event.draft_text:
        return revise("Sign the answer with: -- the clerk")
    return go_on()


async def show_revision(mesh: Mesh, endpoint: str, task: str) -> None:
    grants = (Grant.FINALIZE_CONTROL, Grant.CONVERSATION_ACCESS)
    await mesh.plugins.register(Plugin(NAME, endpoint, (HookKind.BEFORE_AGENT_FINALIZE,), grants=grants))
    try:
        result = await mesh.run(task, timeout=600)
        print(f"revisions: {result.run.revision_count}")
        print(result.text)
        async for delivery in mesh.plugins.deliveries(run_id=result.run.run_id):
            print(f"{delivery.hook}: {delivery.decision}")
    finally:
        await mesh.plugins.delete(NAME)


async def main(listen: str, jwks: str, tenant: str, task: str) -> None:
    settings = PluginSettings(listen=listen, jwks_file=Path(jwks), tenants=[tenant])
    ready = asyncio.Event()
    handlers = Handlers(sys.modules[__name__])
    server = asyncio.create_task(serve(handlers, settings, lambda _port: ready.set(), name=NAME))
    try:
        await ready.wait()
        async with connect() as mesh:
            await show_revision(mesh, settings.registered_endpoint, task)
    finally:
        server.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
