"""The hook service and its worker, put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh.hook.v1.hook_service_pb2_grpc import add_HookServiceServicer_to_server
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import add_RunHookServiceServicer_to_server
from spawnmesh.hook.v1.tenant_hook_service_pb2_grpc import add_TenantHookServiceServicer_to_server
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import Listener, open_listener
from spawnmesh_postgres.worker_beats import beat_for_ever
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_hook.breakers import Breakers, CallSlots
from spawnmesh_hook.bundled import read_bundled
from spawnmesh_hook.compaction_gate import CompactionGate
from spawnmesh_hook.decision_store import ASKING_ENDED_CHANNEL
from spawnmesh_hook.delivery_metrics import DeliveryMetrics
from spawnmesh_hook.delivery_target import DeliveryTargets
from spawnmesh_hook.directory import PluginDirectory, kept_fresh
from spawnmesh_hook.domain.endpoints import parse_rules
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.errors import translate_purged
from spawnmesh_hook.finalize_gate import FinalizeGate
from spawnmesh_hook.lookups import LookUp, Lookups, ask_system
from spawnmesh_hook.native_relay import NativeRelay
from spawnmesh_hook.outbox import Outbox
from spawnmesh_hook.outbox_store import OUTBOX_CHANNEL
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.plugin_peers import PluginPeers
from spawnmesh_hook.registry import PluginRegistry
from spawnmesh_hook.run_modifiers import RunModifiers
from spawnmesh_hook.run_servicer import RunHookServicer
from spawnmesh_hook.servicer import HookServicer
from spawnmesh_hook.settings import HookSettings
from spawnmesh_hook.spawn_gate import SpawnGate
from spawnmesh_hook.store import PLUGINS_CHANGED_CHANNEL
from spawnmesh_hook.tellers import Tellers
from spawnmesh_hook.tenant_servicer import TenantHookServicer
from spawnmesh_hook.tenants import Tenants
from spawnmesh_hook.webhooks import Webhooks, trust


@dataclass(frozen=True, slots=True)
class _Parts:
    """What server and worker have in common."""

    database: Database
    listener: Listener
    directory: PluginDirectory
    registry: PluginRegistry
    calls: PluginCalls


@asynccontextmanager
async def _open_parts(process: Process, settings: HookSettings, look_up: LookUp) -> AsyncIterator[_Parts]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="hook",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
            )
        )
        channels = (ASKING_ENDED_CHANNEL, PLUGINS_CHANGED_CHANNEL, OUTBOX_CHANNEL)
        listener = await stack.enter_async_context(
            open_listener(settings.database_direct_url or settings.database_url, name="hook", channels=channels)
        )
        rules = parse_rules(settings.allowed_endpoint_hosts, allow_private=settings.allow_private_endpoints)
        guard = EndpointGuard(rules, Lookups(look_up).addresses_of)
        tls = trust(settings.webhook_ca_file)
        key_file = settings.signing_key_file
        webhooks = Webhooks(tls, key_file.read_bytes() if key_file else None)
        peers = PluginPeers(process, settings.max_idle_peers)
        stack.push_async_callback(peers.close)
        bundled = read_bundled(settings.bundled_plugins_file)
        directory = PluginDirectory(database, bundled)
        await stack.enter_async_context(kept_fresh(directory, listener))
        registry = PluginRegistry(database, directory, bundled, guard, settings, tls, webhooks)
        metrics = DeliveryMetrics(process.metrics.meter)
        calls = PluginCalls(database, guard, peers, webhooks, Breakers(), CallSlots(), metrics)
        yield _Parts(database, listener, directory, registry, calls)


@asynccontextmanager
async def open_service(
    process: Process, settings: HookSettings, look_up: LookUp = ask_system
) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with _open_parts(process, settings, look_up) as parts:
        drafts = FinalizeGate(parts.database, parts.listener, parts.directory, parts.calls)
        servicer = HookServicer(
            database=parts.database,
            registry=parts.registry,
            calls=parts.calls,
            spawns=SpawnGate(parts.directory, parts.calls),
            drafts=drafts,
            targets=DeliveryTargets(parts.directory, parts.calls),
            compactions=CompactionGate(parts.directory, parts.calls),
            outbox=Outbox(parts.database, parts.directory),
            relay=NativeRelay(drafts),
        )
        server = build_server(process, translate_errors=(translate_purged, translate))
        add_HookServiceServicer_to_server(servicer, server)
        add_TenantHookServiceServicer_to_server(TenantHookServicer(Tenants(parts.database, parts.directory)), server)
        add_RunHookServiceServicer_to_server(
            RunHookServicer(parts.directory, RunModifiers(parts.directory, parts.calls)), server
        )
        add_deployment(server, parts.database, "hook", workers=["hook-worker"])
        yield server


@asynccontextmanager
async def open_tellers(process: Process, settings: HookSettings) -> AsyncIterator[Tellers]:
    """What the worker does, not running."""
    async with _open_parts(process, settings, ask_system) as parts:
        yield Tellers(
            database=parts.database,
            listener=parts.listener,
            directory=parts.directory,
            calls=parts.calls,
            at_once=settings.telling_concurrency,
            kept_for=timedelta(days=settings.log_retention_days),
        )


async def work(process: Process, settings: HookSettings) -> None:
    """Tells observers and prunes the log, until cancelled."""
    async with open_tellers(process, settings) as tellers, asyncio.TaskGroup() as tasks:
        tasks.create_task(beat_for_ever(tellers.database, "hook-worker"), name="beat")
        tasks.create_task(tellers.tell_for_ever(), name="tell")
        tasks.create_task(tellers.prune_for_ever(), name="prune")
