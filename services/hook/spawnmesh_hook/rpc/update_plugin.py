"""UpdatePlugin: register a plugin of the tenant, or change one."""

from dataclasses import dataclass

from spawnmesh.hook.v1 import event_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_calls.field_masks import Path, apply_changes, changed_paths
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.errors import (
    GrantMissing,
    NameIsBundled,
    UnknownTenant,
    check_etag,
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
    is_same_content,
    missing_grant,
    wait_without_effect,
)
from spawnmesh_hook.operations.endpoint_check import check_endpoint
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin
from spawnmesh_hook.store import plugins

_FIXED = frozenset({"name", "paused", "bundled", "etag"})
_ENDPOINT: Path = ("endpoint",)


async def update_plugin(
    request: pb.UpdatePluginRequest, caller: Caller, deps: Dependencies
) -> pb.UpdatePluginResponse:
    """Enable the plugin's hooks, store the plugin and return it, with the secret of a webhook.

    Raises NameIsBundled, UnknownTenant, NOT_FOUND, EtagDiffers, GrantMissing, EndpointNotAllowed,
    EndpointNotReached, and PLUGIN_COUNT_EXCEEDED or GATE_COUNT_EXCEEDED.
    """
    tenant_id, name = caller.tenant_id, request.plugin.name
    paths = changed_paths(request.update_mask, request.plugin, _FIXED)
    if deps.bundled.has_name(name):
        raise NameIsBundled(name)
    async with deps.database.transaction(tenant_id) as connection:
        change = await _read_change(connection, tenant_id, request, paths)
    current, wanted = change.current, change.wanted
    endpoint = parse_endpoint(wanted.endpoint)
    secret = deps.secrets.of_plugin(tenant_id, wanted) if endpoint.is_webhook else ""
    if current is None or _ENDPOINT in paths:
        must_connect = not request.allow_unreachable
        await check_endpoint(endpoint, tenant_id, deps.guard, deps.probe, must_connect=must_connect)
    while (plugin := await _store(change, request, paths, tenant_id, deps)) is None:
        async with deps.database.transaction(tenant_id) as connection:
            change = await _read_change(connection, tenant_id, request, paths)
    deps.plugin_cache.invalidate()
    return pb.UpdatePluginResponse(plugin=render_plugin(plugin), webhook_secret=secret)


@dataclass(frozen=True, slots=True)
class _Change:
    """A plugin as it is and as it is wanted, of the tenant with this `settings_version`."""

    current: Plugin | None
    wanted: Plugin
    settings_version: int

    @property
    def enabled(self) -> tuple[int, frozenset[HookKind]]:
        """Return what the session service has to know before the plugin is stored."""
        return self.settings_version, frozenset(self.wanted.hooks)


async def _store(
    read: _Change,
    request: pb.UpdatePluginRequest,
    paths: tuple[Path, ...],
    tenant_id: str,
    deps: Dependencies,
) -> Plugin | None:
    """Enable the hooks of the plugin that was read, store the plugin and return it.

    Return None, with nothing stored, if other hooks would have to be enabled by now, or those of a
    tenant that was created anew.
    """
    if deps.session is not None:
        await deps.session.enable_hooks(tenant_id, read.wanted.hooks)
    async with deps.database.adding(tenant_id) as connection:
        # Others may have been added or changed meanwhile. An endpoint that another call has written
        # was checked by that call.
        change = await _read_change(connection, tenant_id, request, paths)
        if change.enabled != read.enabled:
            return None
        current, wanted = change.current, change.wanted
        if current is None or not is_same_content(current, wanted):
            generation = current.generation if current is not None else None
            current = await plugins.write_plugin(connection, tenant_id, wanted, generation)
            await plugins.notify_plugins_changed(connection)
    return current


async def _read_change(
    connection: Connection, tenant_id: str, request: pb.UpdatePluginRequest, paths: tuple[Path, ...]
) -> _Change:
    """Return the plugin as it is and as it is wanted, after every check that needs no network.

    Until the transaction ends, no other one writes a plugin of the tenant.
    """
    given = request.plugin
    tenant = await plugins.lock_tenant(connection, tenant_id, given.name)
    if tenant is None:
        raise UnknownTenant("this tenant does not exist")
    current = await plugins.lock_plugin(connection, tenant_id, given.name)
    if current is None:
        if given.etag or not request.allow_missing:
            raise not_found("plugin", given.name)
        wanted = _parse_plugin(given)
    else:
        message = render_plugin(current)
        apply_changes(paths, given, message)
        wanted = _parse_plugin(message)
        if not is_same_content(current, wanted):
            check_etag("plugin.etag", given.etag, current)
    check_plugin_count(wanted, tenant.limits, tenant.counts)
    missing = missing_grant(wanted)
    if missing is not None:
        raise GrantMissing(wanted.name, *missing)
    return _Change(current, wanted, tenant.settings_version)


def _parse_plugin(message: pb.Plugin) -> Plugin:
    """Parse the plugin and fill in defaults.

    Raises INVALID_REQUEST for a plugin without hooks, for an endpoint that is neither
    `grpc://host:port` nor an https URL, and for a `max_wait` without effect.
    """
    try:
        parse_endpoint(message.endpoint)
    except ValueError as error:
        raise invalid("plugin.endpoint", str(error)) from error
    if not message.hooks:
        raise invalid("plugin.hooks", "names no hook")
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
