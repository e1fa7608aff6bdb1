"""The model router, put together."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import add_ModelRouterServiceServicer_to_server
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_model_router.availability import Availability
from spawnmesh_model_router.config import RouterConfig, load_config
from spawnmesh_model_router.cooldowns import open_cooldowns
from spawnmesh_model_router.credentials import CredentialSource
from spawnmesh_model_router.parts import Parts, Patience
from spawnmesh_model_router.policies import open_policies
from spawnmesh_model_router.policy_store import POLICIES_CHANNEL
from spawnmesh_model_router.providers.answer import Timing
from spawnmesh_model_router.providers.upstream import open_upstreams
from spawnmesh_model_router.router_metrics import RouterMetrics
from spawnmesh_model_router.servicer import ModelRouterServicer
from spawnmesh_model_router.settings import ModelRouterSettings
from spawnmesh_model_router.store import COOLDOWNS_CHANNEL


@asynccontextmanager
async def open_service(
    process: Process, settings: ModelRouterSettings, *, environ: Mapping[str, str] | None = None
) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends.

    `environ` is where `env:` credentials are looked up, if not in the process's own. A wrong configuration ends the process.
    """
    config, source = load_config(settings.config_file), CredentialSource(environ)
    _warn_of_missing_credentials(config, source)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="model_router",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
            )
        )
        listener = await stack.enter_async_context(
            open_listener(
                settings.database_direct_url or settings.database_url,
                name="model_router listener",
                channels=(COOLDOWNS_CHANNEL, POLICIES_CHANNEL),
            )
        )
        metrics = RouterMetrics(process.metrics.meter)
        policies = await stack.enter_async_context(open_policies(database, listener, settings.database_max_connections))
        cooldowns = await stack.enter_async_context(open_cooldowns(database, listener, metrics))
        upstreams = await stack.enter_async_context(open_upstreams(config.providers, settings.connect_timeout_seconds))
        patience = Patience(
            Timing(settings.attempt_timeout_seconds, settings.idle_timeout_seconds),
            settings.tries_before_failover,
            settings.tries_at_last_candidate,
        )
        parts = Parts(config, Availability(config, source, cooldowns), upstreams, patience, process.tracer, metrics)
        server = build_server(process, translate_errors=(translate,))
        add_ModelRouterServiceServicer_to_server(ModelRouterServicer(parts, policies), server)
        add_deployment(server, database, "model-router")
        yield server


def _warn_of_missing_credentials(config: RouterConfig, source: CredentialSource) -> None:
    """A missing key is no reason not to serve the other providers, and may still be mounted; but it should not be a riddle."""
    for name, provider in config.providers.items():
        for number, reference in enumerate(provider.credentials, 1):
            if source.read(reference) is None:
                structlog.get_logger().warning("credential_missing", provider=name, number=number)
