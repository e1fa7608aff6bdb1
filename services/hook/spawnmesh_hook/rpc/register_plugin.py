"""RegisterPlugin: add or replace a plugin of the tenant."""

from spawnmesh.hook.v1 import event_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.clients.dns_resolver import DnsLookupFailed
from spawnmesh_hook.domain.endpoints import Endpoint, parse_endpoint
from spawnmesh_hook.domain.errors import (
    EndpointNotAllowed,
    EndpointNotReached,
    GrantMissing,
    NameIsBundled,
    UnknownTenant,
    check_plugin_count,
)
from spawnmesh_hook.domain.plugins import (
    DEFAULT_CONCURRENT_CALLS,
    DEFAULT_TIMEOUT,
    FailurePolicy,
    Grant,
    HookKind,
    Plugin,
    default_failure_policy,
    missing_grant,
    wait_without_effect,
)
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin
from spawnmesh_hook.store import plugins


async def register_plugin(
    request: pb.RegisterPluginRequest, caller: Caller, deps: Dependencies
) -> pb.RegisterPluginResponse:
    """Store the plugin and return it, with the signing secret if it is a webhook.

    Raises NameIsBundled, UnknownTenant, GrantMissing, EndpointNotAllowed, EndpointNotReached, and
    PLUGIN_COUNT_EXCEEDED or GATE_COUNT_EXCEEDED.
    """
    tenant_id, plugin = caller.tenant_id, _parse_plugin(request.plugin)
    if deps.bundled.has_name(plugin.name):
        raise NameIsBundled(plugin.name)
    async with deps.database.transaction(tenant_id) as connection:
        await _check_count(connection, tenant_id, plugin)
    missing = missing_grant(plugin)
    if missing is not None:
        raise GrantMissing(plugin.name, *missing)
    endpoint = parse_endpoint(plugin.endpoint)
    secret = ""
    if endpoint.is_webhook:
        secret = deps.webhooks.secret_of(tenant_id, plugin) or ""
        if not secret:
            raise EndpointNotAllowed("is a webhook, and this service has no key to sign calls with")
    await _check_endpoint(endpoint, tenant_id, deps, must_connect=not request.allow_unreachable)
    async with deps.database.adding(tenant_id) as connection:
        await _check_count(connection, tenant_id, plugin)  # Others may have been added meanwhile.
        stored = await plugins.upsert_plugin(connection, tenant_id, plugin)
        await plugins.notify_plugins_changed(connection)
    deps.directory.invalidate()
    return pb.RegisterPluginResponse(plugin=render_plugin(stored), webhook_secret=secret)


async def _check_count(connection: Connection, tenant_id: str, plugin: Plugin) -> None:
    found = await plugins.lock_counts(connection, tenant_id, plugin.name)
    if found is None:
        raise UnknownTenant("this tenant does not exist")
    check_plugin_count(plugin, *found)


async def _check_endpoint(
    endpoint: Endpoint, tenant_id: str, deps: Dependencies, *, must_connect: bool
) -> None:
    try:
        addresses = await deps.guard.addresses_of(endpoint, tenant_id)
    except DnsLookupFailed as error:
        if must_connect:
            raise EndpointNotReached(f"the DNS lookup of its name failed: {error}") from None
        return
    if must_connect:
        await deps.probe.check(endpoint, addresses)


def _parse_plugin(message: pb.Plugin) -> Plugin:
    """Parse the plugin and fill in defaults.

    Raises INVALID_REQUEST for an endpoint that is neither `grpc://host:port` nor an https URL, and
    for a `max_wait` without effect.
    """
    try:
        parse_endpoint(message.endpoint)
    except ValueError as error:
        raise invalid("plugin.endpoint", str(error)) from error
    hooks = tuple(
        HookKind(event_pb2.HookKind.Name(hook).removeprefix("HOOK_KIND_")) for hook in message.hooks
    )
    if message.failure_policy == pb.FAILURE_POLICY_UNSPECIFIED:
        policy = default_failure_policy(hooks)
    else:
        policy = FailurePolicy(pb.FailurePolicy.Name(message.failure_policy).removeprefix("FAILURE_POLICY_"))
    plugin = Plugin(
        name=message.name,
        endpoint=message.endpoint,
        hooks=hooks,
        priority=message.priority,
        timeout=message.timeout.ToTimedelta() if message.HasField("timeout") else DEFAULT_TIMEOUT,
        failure_policy=policy,
        grants=tuple(Grant(pb.Grant.Name(grant).removeprefix("GRANT_")) for grant in message.grants),
        max_concurrent_calls=message.max_concurrent_calls or DEFAULT_CONCURRENT_CALLS,
        max_wait=message.max_wait.ToTimedelta() if message.HasField("max_wait") else None,
    )
    if why := wait_without_effect(plugin):
        raise invalid("plugin.max_wait", why)
    return plugin
