"""The routes of a gateway: one for each RPC that callers outside of the mesh may call."""

from collections.abc import Iterator

from spawnmesh_calls.service_header import SERVICE_HEADER

from spawnmesh_gateway.refusals import NAME_THE_SERVICE, UNKNOWN_RPC, direct_refusal
from spawnmesh_gateway.rpcs import GatewayRpc, gateway_rpcs
from spawnmesh_gateway.typed import Json, extension

_SAFE = "connect-failure,refused-stream,reset-before-request"
"""Failures after which the service has seen nothing of the call."""
_OTHER_HOST = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
_QUICK_TRY_SECONDS = 15
_QUICK_IDLE_SECONDS = 120
# A service ends a call after an hour, and a stream of events with its connection a little later.
_LONG_IDLE_SECONDS = 4200


def route_table() -> Json:
    """Return all routes. What has none is refused."""
    return {
        "name": "mesh",
        "virtual_hosts": [{"name": "mesh", "domains": ["*"], "routes": list(_routes())}],
    }


def _routes() -> Iterator[Json]:
    for rpc in gateway_rpcs():
        if rpc.is_shared:
            for service in rpc.services:
                named = [{"name": SERVICE_HEADER, "string_match": {"exact": service}}]
                yield {"match": {"path": rpc.path, "headers": named}, "route": _action(rpc, service)}
            yield {"match": {"path": rpc.path}, **direct_refusal(NAME_THE_SERVICE)}
        else:
            yield {"match": {"path": rpc.path}, "route": _action(rpc, rpc.services[0])}
    yield {"match": {"prefix": "/"}, **direct_refusal(UNKNOWN_RPC)}


def _action(rpc: GatewayRpc, service: str) -> Json:
    idle_seconds = _QUICK_IDLE_SECONDS if rpc.is_quick else _LONG_IDLE_SECONDS
    return {
        "cluster": service,
        # A deadline is the caller's and the service's: both have `grpc-timeout`.
        "timeout": "0s",
        "idle_timeout": f"{idle_seconds}s",
        "retry_policy": _retry_policy(rpc),
    }


def _retry_policy(rpc: GatewayRpc) -> Json:
    """Return when the gateway repeats a call. The retry budget of the service bounds it too.

    A call that may have had an effect is repeated only if its contract allows it. A quick read is
    also tried elsewhere if a replica does not answer.
    """
    policy: Json = {
        "retry_on": f"{_SAFE},reset,unavailable" if rpc.is_repeatable else _SAFE,
        "num_retries": 2,
        "retry_back_off": {"base_interval": "0.05s", "max_interval": "0.5s"},
        "retry_host_predicate": [extension("envoy.retry_host_predicates.previous_hosts", _OTHER_HOST)],
        "host_selection_retry_max_attempts": 3,
    }
    if rpc.is_quick and rpc.only_reads:
        policy["retry_on"] += ",gateway-error"
        policy["per_try_timeout"] = f"{_QUICK_TRY_SECONDS}s"
    return policy
