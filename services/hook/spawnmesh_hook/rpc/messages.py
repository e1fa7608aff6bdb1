"""Parses and renders messages that several RPCs share."""

from collections.abc import Sequence

from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_calls.wire_times import duration_of, timestamp_of
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.deliveries import Delivery, DeliveryDecision
from spawnmesh_hook.domain.plugins import HookKind, Plugin, etag_of


def check_own_run(caller: Caller, session_id: str, run_id: str) -> None:
    """Raise NOT_FOUND unless session and run are those of the calling run."""
    if session_id != caller.session_id:
        raise not_found("session", session_id)
    if run_id != caller.run_id:
        raise not_found("run", run_id)


def render_plugin(plugin: Plugin) -> pb.Plugin:
    """Render the plugin as it is registered."""
    return pb.Plugin(
        name=plugin.name,
        endpoint=plugin.endpoint,
        hooks=render_hooks(plugin.hooks),
        priority=plugin.priority,
        timeout=duration_of(plugin.timeout),
        failure_policy=pb.FailurePolicy.Value(f"FAILURE_POLICY_{plugin.failure_policy}"),
        grants=[pb.Grant.Value(f"GRANT_{grant}") for grant in plugin.grants],
        max_concurrent_calls=plugin.max_concurrent_calls,
        paused=plugin.paused,
        bundled=plugin.bundled,
        max_wait=duration_of(plugin.max_wait) if plugin.max_wait is not None else None,
        etag=etag_of(plugin),
    )


def render_hooks(hooks: Sequence[HookKind]) -> list[event_pb2.HookKind.ValueType]:
    """Render the hooks in the given order."""
    return [event_pb2.HookKind.Value(f"HOOK_KIND_{hook}") for hook in hooks]


def parse_delivery_decision(decision: "delivery_pb.DeliveryDecision.ValueType") -> DeliveryDecision | None:
    """Return the decision of a request; None for any."""
    name = delivery_pb.DeliveryDecision.Name(decision).removeprefix("DELIVERY_DECISION_")
    return DeliveryDecision[name] if decision else None


def render_delivery(delivery: Delivery) -> delivery_pb.Delivery:
    """Render one row of the delivery log."""
    return delivery_pb.Delivery(
        plugin=delivery.plugin,
        hook=event_pb2.HookKind.Value(f"HOOK_KIND_{delivery.hook}"),
        session_id=delivery.session_id,
        run_id=delivery.run_id,
        start_time=timestamp_of(delivery.start_time),
        latency=duration_of(delivery.latency),
        decision=delivery_pb.DeliveryDecision.Value(f"DELIVERY_DECISION_{delivery.decision.name}"),
        error=delivery.error,
        attempt=delivery.attempt,
    )
