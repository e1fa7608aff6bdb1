"""DispatchBeforeSpawn: call the plugins for BEFORE_SPAWN."""

from collections.abc import Sequence

from spawnmesh.hook.v1 import decision_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import HAS_ALLOW_FACT
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.decisions import Denial
from spawnmesh_hook.domain.errors import PluginFailed
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind, Plugin
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import allowed_spawns

_ALLOWED = pb.DispatchBeforeSpawnResponse(decision=decision_pb2.SpawnDecision(allow=decision_pb2.Allow()))


async def dispatch_before_spawn(
    request: pb.DispatchBeforeSpawnRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforeSpawnResponse:
    """Return the first denial in order of priority, or an allow. Raises PluginFailed.

    All plugins are called at the same time, so that many of them take no longer than the slowest.
    An allow is stored, if there are plugins: they allowed the spawn also if the caller never gets
    the answer. A repeat calls the plugins again, and a stored allow stands whatever they say then.
    A denial and PluginFailed say whether any plugin has allowed the spawn: such a plugin may have
    reserved something for it, and must be notified that the spawn failed.
    """
    tenant_id, session_id = caller.tenant_id, request.event.session_id
    plugins = await deps.plugin_cache.active(tenant_id, HookKind.BEFORE_SPAWN)
    try:
        denial = await _first_denial(request, tenant_id, deps, budget, plugins)
    except PluginFailed as failed:
        is_allowed, has_allow = await _what_is_known(deps, tenant_id, session_id)
        if is_allowed:
            return _ALLOWED
        if has_allow:
            failed.facts[HAS_ALLOW_FACT] = "true"
        raise
    if denial is not None:
        is_allowed, has_allow = await _what_is_known(deps, tenant_id, session_id)
        return _ALLOWED if is_allowed else _render(denial, has_allow)
    if plugins:
        async with deps.database.adding(tenant_id) as connection:
            await allowed_spawns.insert_allowed_spawn(connection, tenant_id, session_id)
    return _ALLOWED


async def _first_denial(
    request: pb.DispatchBeforeSpawnRequest,
    tenant_id: str,
    deps: Dependencies,
    budget: TimeBudget,
    plugins: Sequence[Plugin],
) -> Denial | None:
    called = await deps.dispatcher.concurrent_answers(
        tenant_id, HookKind.BEFORE_SPAWN, budget, request.event, request_builders.before_spawn, plugins
    )
    for access, answer in called:
        plugin = access.plugin
        if isinstance(answer, CallFailure):
            if plugin.failure_policy is FailurePolicy.CLOSED:
                raise PluginFailed(plugin.name, HookKind.BEFORE_SPAWN, answer)
        elif answer.decision.HasField("deny"):
            return Denial(plugin.name, answer.decision.deny.reason)
    return None


async def _what_is_known(deps: Dependencies, tenant_id: str, session_id: str) -> tuple[bool, bool]:
    """Return whether the plugins have allowed the spawn, and whether one of them has."""
    async with deps.database.transaction(tenant_id) as connection:
        is_allowed = await allowed_spawns.is_allowed(connection, tenant_id, session_id)
        return is_allowed, await allowed_spawns.has_allow(connection, tenant_id, session_id)


def _render(denial: Denial, has_allow: bool) -> pb.DispatchBeforeSpawnResponse:
    denied = decision_pb2.SpawnDecision(deny=decision_pb2.Deny(reason=denial.reason))
    return pb.DispatchBeforeSpawnResponse(decision=denied, decided_by=denial.plugin, has_allow=has_allow)
