"""The composition root of the model router."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import add_ModelRouterServiceServicer_to_server
from spawnmesh_core.span_content import SpanContent
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.audit.servicer import add_audit
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.tenant_participant_servicer import add_tenant_participant
from spawnmesh_runtime.call_limits_follower import following_call_limits
from spawnmesh_runtime.caller import caller_scope, caller_tenant_id
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.revocation_follower import following_revocations
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_model_router.clients.credentials import CredentialSource
from spawnmesh_model_router.clients.providers.upstream import open_upstreams
from spawnmesh_model_router.clients.session_budgets import open_session_budgets
from spawnmesh_model_router.domain.answer import StreamTimeouts
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.jobs.worker import run_jobs
from spawnmesh_model_router.metrics import RouterMetrics
from spawnmesh_model_router.operations.budget_counter import BudgetCounter
from spawnmesh_model_router.operations.bulkhead import DatabaseBulkhead
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_model_router.operations.credential_watch import watching_credentials
from spawnmesh_model_router.operations.failover.availability import Availability
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies, RetrySettings
from spawnmesh_model_router.operations.policy_cache import PolicyCache
from spawnmesh_model_router.operations.request_threads import open_request_threads
from spawnmesh_model_router.operations.run_budgets import RunBudgets
from spawnmesh_model_router.operations.trace_content import TraceContent
from spawnmesh_model_router.operations.usage_log import UsageLog
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.servicer import ModelRouterServicer
from spawnmesh_model_router.rpc.tenant_data import RouterTenants
from spawnmesh_model_router.settings import ModelRouterSettings, load_config, read_environment
from spawnmesh_model_router.store.cooldowns import COOLDOWNS_CHANNEL
from spawnmesh_model_router.store.policies import POLICIES_CHANNEL


@asynccontextmanager
async def open_service(
    process: Process, settings: ModelRouterSettings, *, environ: Mapping[str, str] | None = None
) -> AsyncIterator[MeshServer]:
    """Build the server, not started. Its resources close when the block ends.

    `env:` credentials are read from `environ`, by default the process's own environment. A wrong
    configuration ends the process.
    """
    config = load_config(settings.config_file)
    source = CredentialSource(read_environment() if environ is None else environ)
    _warn_of_missing_credentials(config, source)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="model_router",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
                dependencies=process.dependencies,
            )
        )
        listener = await stack.enter_async_context(
            open_listener(
                settings.database_direct_url or settings.database_url,
                name="model_router listener",
                channels=(COOLDOWNS_CHANNEL, POLICIES_CHANNEL),
            )
        )
        cooldown_changes = stack.enter_context(listener.subscription(COOLDOWNS_CHANNEL))
        policy_changes = stack.enter_context(listener.subscription(POLICIES_CHANNEL))
        metrics = RouterMetrics(process.metrics.meter)
        # One connection stays free for the cooldowns and for requests that change a tenant.
        bulkhead = DatabaseBulkhead(
            database, max(settings.database_max_connections - 1, 1), settings.database_timeout_seconds
        )
        stack.push_async_callback(bulkhead.finish)
        run_budgets = RunBudgets(
            await stack.enter_async_context(open_session_budgets(process, settings.session_target))
        )
        stack.push_async_callback(run_budgets.finish)
        budgets = BudgetCounter(bulkhead)
        policies = PolicyCache(bulkhead, budgets)
        cooldowns = CooldownCache(database, cooldown_changes, metrics)
        usage = UsageLog(bulkhead)
        await stack.enter_async_context(
            run_jobs(cooldowns, cooldown_changes, policies, policy_changes, usage)
        )
        upstreams = await stack.enter_async_context(
            open_upstreams(config.providers, settings.connect_timeout_seconds)
        )
        chain = ChainDependencies(
            config=config,
            availability=Availability(config, source, cooldowns),
            upstreams=upstreams,
            threads=await stack.enter_async_context(open_request_threads()),
            retries=RetrySettings(
                StreamTimeouts(settings.attempt_timeout_seconds, settings.idle_timeout_seconds),
                settings.tries_before_failover,
                settings.tries_at_last_candidate,
            ),
            tracer=process.tracer,
            metrics=metrics,
            trace_content=(
                TraceContent(SpanContent(settings.trace_content_max_bytes))
                if settings.trace_content_max_bytes
                else None
            ),
        )
        for provider in config.providers:
            stack.enter_context(watching_credentials(process.dependencies, provider, chain.availability))
        await stack.enter_async_context(following_revocations(process, settings.session_target))
        await stack.enter_async_context(following_call_limits(process, settings.session_target))
        audit = await stack.enter_async_context(
            open_audit_log(database, process.metrics.meter, process.logger)
        )
        server = build_server(process, translate_errors=(translate,), record=audit.record)
        servicer = ModelRouterServicer(
            Dependencies(database, policies, budgets, run_budgets, usage, cooldowns, chain)
        )
        add_ModelRouterServiceServicer_to_server(servicer, server)
        add_tenant_participant(server, database, RouterTenants(policies, cooldowns, usage), caller_tenant_id)
        add_audit(server, database, "model-router", caller_scope)
        add_deployment(server, database, "model-router", dependencies=process.dependencies)
        yield server


def _warn_of_missing_credentials(config: RouterConfig, source: CredentialSource) -> None:
    """Log each credential that cannot be read.

    The service starts without it: other providers work, and a file may be mounted later.
    """
    for name, provider in config.providers.items():
        for number, reference in enumerate(provider.credentials, 1):
            if source.read(reference) is None:
                structlog.get_logger().warning("credential_missing", provider=name, number=number)
