"""The routes of a gateway: one for each RPC that callers outside of the mesh may call."""

from collections.abc import Iterator

from spawnmesh_calls.service_header import SERVICE_HEADER

from spawnmesh_gateway.refusals import NAME_THE_SERVICE, UNKNOWN_RPC, direct_refusal
from spawnmesh_gateway.rpcs import GatewayRpc, gateway_rpcs
from spawnmesh_gateway.settings import SERVICES, GatewaySettings
from spawnmesh_gateway.transcoding import FILTER, SERVICES_PREFIX, transcoder
from spawnmesh_gateway.typed import Json, extension, typed

_SAFE = "connect-failure,refused-stream,reset-before-request"
"""Failures after which the service has seen nothing of the call."""
_OTHER_HOST = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
_QUICK_TRY_SECONDS = 15
_QUICK_IDLE_SECONDS = 120
# A service ends a call after an hour, and a stream of events with its connection a little later.
# A deadline is the caller's and the service's: both have `grpc-timeout`.
_LONG: Json = {"timeout": "0s", "idle_timeout": "4200s"}
_RETRIES: Json = {
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.05s", "max_interval": "0.5s"},
    "retry_host_predicate": [extension("envoy.retry_host_predicates.previous_hosts", _OTHER_HOST)],
    "host_selection_retry_max_attempts": 3,
}
BUFFER_FILTER = "envoy.filters.http.buffer"
BUFFER_TYPE = "envoy.extensions.filters.http.buffer.v3.Buffer"
_BUFFER_OF_ROUTE = "envoy.extensions.filters.http.buffer.v3.BufferPerRoute"
CORS_FILTER = "envoy.filters.http.cors"
_ALLOWED_HEADERS = (
    "authorization",
    "content-type",
    SERVICE_HEADER,
    "traceparent",
    "tracestate",
    "grpc-timeout",
    "x-grpc-web",
    "x-user-agent",
    "connect-protocol-version",
    "connect-timeout-ms",
)
_SHOWN_HEADERS = ("grpc-status", "grpc-message", "grpc-status-details-bin")


def route_table(settings: GatewaySettings) -> Json:
    """Return all routes. What has none is refused.

    JSON over HTTP becomes a call of an RPC, and takes its route. Where all services have the RPC,
    the path names the service.
    """
    host: Json = {"name": "mesh", "domains": ["*"], "routes": list(_routes(settings))}
    # gRPC streams through. JSON is read as a whole, and bounded, before it becomes a call.
    host["typed_per_filter_config"] = {BUFFER_FILTER: typed(_BUFFER_OF_ROUTE, disabled=True)}
    if settings.allowed_origins:
        host["typed_per_filter_config"][CORS_FILTER] = _cors_policy(settings.allowed_origins)
    return {"name": "mesh", "virtual_hosts": [host]}


def _routes(settings: GatewaySettings) -> Iterator[Json]:
    limit = {"max_request_bytes": settings.max_message_bytes}
    buffered = {BUFFER_FILTER: typed(_BUFFER_OF_ROUTE, buffer=limit)}
    by_path = transcoder(settings, by_incoming_path=True)
    for service in SERVICES:
        yield {
            "match": {"prefix": f"{SERVICES_PREFIX}{service}/"},
            "route": {**_LONG, "cluster": service, "retry_policy": {**_RETRIES, "retry_on": _SAFE}},
            "typed_per_filter_config": {**buffered, FILTER: by_path},
        }
    for rpc in gateway_rpcs():
        if rpc.is_shared:
            for service in rpc.services:
                named = [{"name": SERVICE_HEADER, "string_match": {"exact": service}}]
                yield {"match": {"path": rpc.path, "headers": named}, "route": _action(rpc, service)}
            yield {"match": {"path": rpc.path}, **direct_refusal(NAME_THE_SERVICE)}
        else:
            yield {"match": {"path": rpc.path}, "route": _action(rpc, rpc.services[0])}
    # The route of a path until it has become a call. The filter of CORS reads it.
    yield {
        "match": {"prefix": "/v1/"},
        "route": {**_LONG, "cluster": SERVICES[0]},
        "typed_per_filter_config": buffered,
    }
    yield {"match": {"prefix": "/"}, **direct_refusal(UNKNOWN_RPC)}


def _action(rpc: GatewayRpc, service: str) -> Json:
    times = {**_LONG, "idle_timeout": f"{_QUICK_IDLE_SECONDS}s"} if rpc.is_quick else _LONG
    return {**times, "cluster": service, "retry_policy": _retry_policy(rpc)}


def _retry_policy(rpc: GatewayRpc) -> Json:
    """Return when the gateway repeats a call. The retry budget of the service bounds it too.

    A call that may have had an effect is repeated only if its contract allows it. A quick read is
    also tried elsewhere if a replica does not answer.
    """
    policy = {**_RETRIES, "retry_on": f"{_SAFE},reset,unavailable" if rpc.is_repeatable else _SAFE}
    if rpc.is_quick and rpc.only_reads:
        policy["retry_on"] += ",gateway-error"
        policy["per_try_timeout"] = f"{_QUICK_TRY_SECONDS}s"
    return policy


def _cors_policy(origins: tuple[str, ...]) -> Json:
    return typed(
        "envoy.extensions.filters.http.cors.v3.CorsPolicy",
        allow_origin_string_match=[{"exact": origin} for origin in origins],
        allow_methods="GET, POST, PUT, PATCH, DELETE",
        allow_headers=", ".join(_ALLOWED_HEADERS),
        expose_headers=", ".join(_SHOWN_HEADERS),
        max_age="600",
        forward_not_matching_preflights=False,
    )
