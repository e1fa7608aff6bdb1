"""Messages of the contract -> values of the domain."""

from spawnmesh.hook.v1 import decision_pb2, event_pb2, hook_service_pb2
from spawnmesh_core.errors import invalid

from spawnmesh_hook.domain.decisions import Denial, FinalizeAnswer, Verdict
from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.plugins import (
    DEFAULT_TIMEOUT,
    FailurePolicy,
    Grant,
    HookKind,
    Plugin,
    default_failure_policy,
)


def parse_plugin(message: hook_service_pb2.Plugin) -> Plugin:
    """The plugin with its defaults filled in. Refuses an endpoint that is no `grpc://host:port`."""
    try:
        parse_endpoint(message.endpoint)
    except ValueError as error:
        raise invalid("plugin.endpoint", str(error)) from error
    hooks = tuple(HookKind(event_pb2.HookKind.Name(hook).removeprefix("HOOK_KIND_")) for hook in message.hooks)
    if message.failure_policy == hook_service_pb2.FAILURE_POLICY_UNSPECIFIED:
        policy = default_failure_policy(hooks)
    else:
        name = hook_service_pb2.FailurePolicy.Name(message.failure_policy)
        policy = FailurePolicy(name.removeprefix("FAILURE_POLICY_"))
    return Plugin(
        name=message.name,
        endpoint=message.endpoint,
        hooks=hooks,
        priority=message.priority,
        timeout=message.timeout.ToTimedelta() if message.HasField("timeout") else DEFAULT_TIMEOUT,
        failure_policy=policy,
        grants=tuple(Grant(hook_service_pb2.Grant.Name(grant).removeprefix("GRANT_")) for grant in message.grants),
    )


def parse_denial(plugin: str, decision: decision_pb2.SpawnDecision) -> Denial | None:
    """The no in a valid answer of the plugin to a spawn; None for a yes."""
    return Denial(plugin, decision.deny.reason) if decision.HasField("deny") else None


def parse_verdict(plugin: str, decision: decision_pb2.FinalizeDecision) -> Verdict:
    """What a valid answer of the plugin says to a draft."""
    kind = decision.WhichOneof("decision")
    if kind == "revise":
        return Verdict(plugin, FinalizeAnswer.REVISE, decision.revise.reason)
    if kind == "finalize":
        return Verdict(plugin, FinalizeAnswer.FINALIZE, decision.finalize.reason)
    return Verdict(plugin, FinalizeAnswer.CONTINUE)
