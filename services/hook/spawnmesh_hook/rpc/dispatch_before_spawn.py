"""DispatchBeforeSpawn: call the plugins for BEFORE_SPAWN."""

from collections.abc import Sequence

from spawnmesh.hook.v1 import decision_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.decisions import Denial
from spawnmesh_hook.domain.errors import PluginFailed
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind, Plugin
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import allowed_spawns


async def dispatch_before_spawn(
    request: pb.DispatchBeforeSpawnRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforeSpawnResponse:
    """Return the first denial in order of priority, or an allow. Raises PluginFailed.

    All plugins are called at the same time, so that many of them take no longer than the slowest.
    An allow is stored, if there are plugins: they allowed the spawn also if the caller never gets
    the answer. A repeat calls the plugins again, and a stored allow stands whatever they say then.
    """
    tenant_id, session_id = caller.tenant_id, request.event.session_id
    plugins = await deps.directory.active(tenant_id, HookKind.BEFORE_SPAWN)
    try:
        denial = await _first_denial(request, tenant_id, deps, budget, plugins)
    except PluginFailed:
        if await _is_allowed(deps, tenant_id, session_id):
            return _render(None)
        raise
    if denial is not None:
        return _render(None if await _is_allowed(deps, tenant_id, session_id) else denial)
    if plugins:
        async with deps.database.adding(tenant_id) as connection:
            await allowed_spawns.insert_allowed_spawn(connection, tenant_id, session_id)
    return _render(None)


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


async def _is_allowed(deps: Dependencies, tenant_id: str, session_id: str) -> bool:
    async with deps.database.transaction(tenant_id) as connection:
        return await allowed_spawns.is_allowed(connection, tenant_id, session_id)


def _render(denial: Denial | None) -> pb.DispatchBeforeSpawnResponse:
    if denial is None:
        allowed = decision_pb2.SpawnDecision(allow=decision_pb2.Allow())
        return pb.DispatchBeforeSpawnResponse(decision=allowed)
    denied = decision_pb2.SpawnDecision(deny=decision_pb2.Deny(reason=denial.reason))
    return pb.DispatchBeforeSpawnResponse(decision=denied, decided_by=denial.plugin)
