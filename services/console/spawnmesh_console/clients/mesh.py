"""Connections to the services of the mesh, and the mesh as one person sees it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh_calls.connection import Connection
from spawnmesh_client.client import Mesh
from spawnmesh_client.connections import open_service
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.wire import WireMesh

from spawnmesh_console.settings import ConsoleSettings


@asynccontextmanager
async def open_connections(settings: ConsoleSettings) -> AsyncIterator[Mapping[str, Connection]]:
    """Open a connection to each service, by its kebab id. All people share them."""
    targets = {
        "session": settings.session_target,
        "transcript": settings.transcript_target,
        "model-router": settings.model_router_target,
        "attachment-blob": settings.attachment_blob_target,
        "hook": settings.hook_target,
    }
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(open_service(name, target, settings))
            for name, target in targets.items()
        }


def mesh_for(token: str, connections: Mapping[str, Connection], max_message_bytes: int) -> Mesh:
    """Return the mesh whose calls have this token."""
    services = {name: TokenPeer(connection, token) for name, connection in connections.items()}
    return Mesh(WireMesh(services, max_message_bytes))
