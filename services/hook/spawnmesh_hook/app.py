"""Composes the hook service and its worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh.hook.v1.hook_service_pb2_grpc import add_HookServiceServicer_to_server
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import add_RunHookServiceServicer_to_server
from spawnmesh.hook.v1.webhook_service_pb2_grpc import add_WebhookServiceServicer_to_server
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.audit.servicer import add_audit
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_postgres.jobs.servicer import add_jobs
from spawnmesh_postgres.jobs.store import CHANNEL as JOBS_CHANNEL
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.listener import Listener, open_listener
from spawnmesh_postgres.tenant_participant_servicer import add_tenant_participant
from spawnmesh_runtime.call_limits_follower import following_call_limits
from spawnmesh_runtime.caller import caller_scope, caller_tenant_id
from spawnmesh_runtime.cpu_workers import CpuWorkers, open_cpu_workers
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.revocation_follower import following_revocations
from spawnmesh_runtime.server import MeshServer, build_server, serve_not_ready
from spawnmesh_runtime.tenant_work import run_for_tenant

from spawnmesh_hook.clients.connectivity_probe import ConnectivityProbe
from spawnmesh_hook.clients.dns_resolver import DnsResolver, Resolve, resolve_with_system
from spawnmesh_hook.clients.endpoint_guard import EndpointGuard
from spawnmesh_hook.clients.https_post import webhook_tls
from spawnmesh_hook.clients.plugin_channels import PluginChannelPool
from spawnmesh_hook.clients.session import SessionHooks, open_session
from spawnmesh_hook.clients.webhook_plugins import WebhookPluginClient
from spawnmesh_hook.clients.webhook_secrets import WebhookSecrets
from spawnmesh_hook.clients.webhook_sender import WebhookSender
from spawnmesh_hook.domain.endpoints import parse_rules
from spawnmesh_hook.jobs.event_delivery import EventDelivery
from spawnmesh_hook.jobs.log_pruner import LogPruner
from spawnmesh_hook.jobs.webhook_delivery import WebhookDeliverer
from spawnmesh_hook.jobs.worker import Worker
from spawnmesh_hook.metrics import DeliveryMetrics, WebhookMetrics
from spawnmesh_hook.operations.dispatch import Dispatcher
from spawnmesh_hook.operations.finalize_gate import FinalizeGate
from spawnmesh_hook.operations.plugin_cache import PluginCache, invalidate_on_change
from spawnmesh_hook.operations.plugin_invoker import PluginInvoker
from spawnmesh_hook.operations.plugin_waits import PluginWaits
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.servicer import HookServicer, RunHookServicer, WebhookServicer
from spawnmesh_hook.rpc.tenant_data import HookTenants
from spawnmesh_hook.settings import HookSettings
from spawnmesh_hook.store.bundled_plugins import BundledPlugins, read_bundled
from spawnmesh_hook.store.decisions import CLAIM_ENDED_CHANNEL
from spawnmesh_hook.store.plugins import PLUGINS_CHANGED_CHANNEL

_WORKER_MODULES = (
    "spawnmesh_hook.clients.handler_answer",
    "spawnmesh_hook.domain.native_stop",
    "spawnmesh_hook.jobs.event_delivery",
    "spawnmesh_hook.rpc.publish_events",
    "spawnmesh_hook.operations.request_builders",
)
"""The modules of the functions that worker processes call."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """The resources that the server and the worker share."""

    database: Database
    listener: Listener
    bundled: BundledPlugins
    plugin_cache: PluginCache
    guard: EndpointGuard
    probe: ConnectivityProbe
    secrets: WebhookSecrets
    webhook_sender: WebhookSender
    workers: CpuWorkers
    invoker: PluginInvoker


@asynccontextmanager
async def _open_shared(process: Process, settings: HookSettings, resolve: Resolve) -> AsyncIterator[_Shared]:
    """Open what the service and its worker share. Raise SystemExit with one line without a key."""
    if settings.signing_key_file is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to sign calls of webhooks")
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="hook",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
                dependencies=process.dependencies,
            )
        )
        listener_url = settings.database_direct_url or settings.database_url
        channels = (CLAIM_ENDED_CHANNEL, PLUGINS_CHANGED_CHANNEL, JOBS_CHANNEL)
        listener = await stack.enter_async_context(
            open_listener(listener_url, name="hook", channels=channels)
        )
        rules = parse_rules(
            settings.allowed_endpoint_hosts,
            allow_private=settings.allow_private_endpoints,
            allow_plain=settings.allow_plain_webhooks,
        )
        guard = EndpointGuard(rules, DnsResolver(resolve).addresses_of)
        tls = webhook_tls(settings.webhook_ca_file)
        secrets = WebhookSecrets(settings.signing_key_file.read_bytes())
        webhooks = WebhookPluginClient(tls, secrets)
        plugin_channels = PluginChannelPool(process, settings.max_idle_peers)
        stack.push_async_callback(plugin_channels.close)
        bundled = read_bundled(settings.bundled_plugins_file)
        plugin_cache = PluginCache(database, bundled)
        await stack.enter_async_context(invalidate_on_change(plugin_cache, listener))
        meter = process.metrics.meter
        workers = await stack.enter_async_context(open_cpu_workers(settings, meter, modules=_WORKER_MODULES))
        metrics = DeliveryMetrics(meter)
        yield _Shared(
            database=database,
            listener=listener,
            bundled=bundled,
            plugin_cache=plugin_cache,
            guard=guard,
            probe=ConnectivityProbe(settings, tls),
            secrets=secrets,
            webhook_sender=WebhookSender(guard, tls, secrets),
            workers=workers,
            invoker=PluginInvoker(database, guard, plugin_channels, webhooks, workers, metrics),
        )


@asynccontextmanager
async def open_service(
    process: Process, settings: HookSettings, resolve: Resolve = resolve_with_system
) -> AsyncIterator[MeshServer]:
    """Yield a server with all servicers, not started. Its resources are closed after the block."""
    async with (
        _open_shared(process, settings, resolve) as shared,
        following_revocations(process, settings.session_target),
        following_call_limits(process, settings.session_target),
        open_audit_log(shared.database, process.metrics.meter, process.logger) as audit,
        open_session(process, settings.session_target) as session,
        _sharing_hooks(session, shared.bundled),
    ):
        dispatcher = Dispatcher(
            shared.plugin_cache, shared.invoker, PluginWaits(shared.database), shared.workers
        )
        deps = Dependencies(
            database=shared.database,
            bundled=shared.bundled,
            plugin_cache=shared.plugin_cache,
            invoker=shared.invoker,
            dispatcher=dispatcher,
            finalize_gate=FinalizeGate(shared.database, shared.listener, shared.plugin_cache, dispatcher),
            guard=shared.guard,
            probe=shared.probe,
            secrets=shared.secrets,
            webhook_sender=shared.webhook_sender,
            workers=shared.workers,
            session=session,
        )
        server = build_server(process, translate_errors=(translate,), record=audit.record)
        add_HookServiceServicer_to_server(HookServicer(deps), server)
        add_RunHookServiceServicer_to_server(RunHookServicer(deps), server)
        add_WebhookServiceServicer_to_server(WebhookServicer(deps), server)
        add_tenant_participant(server, shared.database, HookTenants(shared.plugin_cache), caller_tenant_id)
        add_jobs(server, shared.database)
        add_audit(server, shared.database, "hook", caller_scope)
        add_deployment(
            server,
            shared.database,
            "hook",
            workers=["hook-worker"],
            dependencies=process.dependencies,
        )
        yield server


@asynccontextmanager
async def _sharing_hooks(session: SessionHooks | None, bundled: BundledPlugins) -> AsyncIterator[None]:
    """During the block, enable the hooks of bundled plugins, as soon as session answers."""
    if session is None:
        yield
        return
    task = asyncio.create_task(session.enable_shared_hooks(bundled.hooks), name="enable shared hooks")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def enable_bundled_hooks(process: Process, settings: HookSettings) -> None:
    """Enable the hooks of bundled plugins, if there are any, before this process serves them."""
    bundled = read_bundled(settings.bundled_plugins_file)
    if bundled.hooks and settings.session_target:
        async with open_session(process, settings.session_target) as session:
            if session is not None:
                async with serve_not_ready(process, lambda _: None):
                    await session.enable_shared_hooks(bundled.hooks)


@asynccontextmanager
async def open_worker(process: Process, settings: HookSettings) -> AsyncIterator[Worker]:
    """Yield a worker, not started. Its resources are closed after the block."""
    async with _open_shared(process, settings, resolve_with_system) as shared:
        delivery = EventDelivery(shared.database, shared.plugin_cache, shared.invoker, shared.workers)
        meter = process.metrics.meter
        webhooks = WebhookDeliverer(shared.database, shared.webhook_sender, WebhookMetrics(meter))
        deliveries = JobWorker(
            shared.database,
            shared.listener,
            [delivery.kind(settings.relay_concurrency), webhooks.kind(settings.relay_concurrency)],
            run_for_tenant,
            JobMetrics(meter),
            grace_seconds=0.0,
        )
        pruner = LogPruner(shared.database, timedelta(days=settings.log_retention_days))
        yield Worker(shared.database, deliveries, pruner)
