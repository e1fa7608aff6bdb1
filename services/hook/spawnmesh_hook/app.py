"""The hook service, put together."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh.hook.v1.hook_service_pb2_grpc import add_HookServiceServicer_to_server
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_hook.decision_store import ASKING_ENDED_CHANNEL
from spawnmesh_hook.domain.endpoints import parse_rules
from spawnmesh_hook.ended_news import EndedNews
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.finalize_gate import FinalizeGate
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.plugin_peers import PluginPeers
from spawnmesh_hook.registry import PluginRegistry
from spawnmesh_hook.resolve import resolve
from spawnmesh_hook.servicer import HookServicer
from spawnmesh_hook.settings import HookSettings
from spawnmesh_hook.spawn_gate import SpawnGate


@asynccontextmanager
async def open_service(process: Process, settings: HookSettings) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(settings.database_url, name="hook", max_connections=settings.database_max_connections)
        )
        listener = await stack.enter_async_context(
            open_listener(settings.database_url, name="hook", channels=(ASKING_ENDED_CHANNEL,))
        )
        rules = parse_rules(settings.allowed_endpoint_hosts, allow_private=settings.allow_private_endpoints)
        guard = EndpointGuard(rules, resolve)
        peers = PluginPeers(process, guard, settings.max_idle_peers)
        stack.push_async_callback(peers.close)
        calls = PluginCalls(database, peers)
        servicer = HookServicer(
            database,
            PluginRegistry(database, guard),
            SpawnGate(database, calls),
            FinalizeGate(database, listener, calls),
            EndedNews(database, calls),
        )
        server = build_server(process, translate_errors=(translate,))
        add_HookServiceServicer_to_server(servicer, server)
        yield server
