"""The stores, clients and operations that the RPCs use."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_hook.clients.connectivity_probe import ConnectivityProbe
from spawnmesh_hook.clients.endpoint_guard import EndpointGuard
from spawnmesh_hook.clients.session import SessionHooks
from spawnmesh_hook.clients.webhook_secrets import WebhookSecrets
from spawnmesh_hook.clients.webhook_sender import WebhookSender
from spawnmesh_hook.operations.dispatch import Dispatcher
from spawnmesh_hook.operations.finalize_gate import FinalizeGate
from spawnmesh_hook.operations.plugin_cache import PluginCache
from spawnmesh_hook.operations.plugin_invoker import PluginInvoker
from spawnmesh_hook.store.bundled_plugins import BundledPlugins


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Filled by `app.py`."""

    database: Database
    bundled: BundledPlugins
    plugin_cache: PluginCache
    invoker: PluginInvoker
    dispatcher: Dispatcher
    finalize_gate: FinalizeGate
    guard: EndpointGuard
    probe: ConnectivityProbe
    secrets: WebhookSecrets
    webhook_sender: WebhookSender
    workers: CpuWorkers
    session: SessionHooks | None
    """Without it, the session service must never have been told which hooks are enabled."""
