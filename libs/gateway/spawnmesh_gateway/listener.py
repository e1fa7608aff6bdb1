"""The listener of a gateway: HTTP/2 and HTTP/1.1 on one port, and what is done with each call."""

from collections.abc import Iterator

from spawnmesh_gateway.clusters import ADMIN_CLUSTER
from spawnmesh_gateway.refusals import local_replies
from spawnmesh_gateway.routes import BUFFER_FILTER, BUFFER_TYPE, CORS_FILTER, route_table
from spawnmesh_gateway.secrets import downstream_tls_context
from spawnmesh_gateway.settings import GatewaySettings
from spawnmesh_gateway.transcoding import FILTER, transcoder
from spawnmesh_gateway.typed import MIB, Json, extension, socket_address

_FILTERS = "envoy.extensions.filters"
_MANAGER = f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"
_MUTATION = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
_HEALTH_PATH = "/healthz"
# Headers by which a caller could choose routes, retries and time-outs, or pretend to be elsewhere.
_FORGEABLE_PREFIXES = ("x-envoy-", "x-forwarded-")
_FORGEABLE_NAMES = ("forwarded", "x-real-ip", "x-request-id", "x-client-trace-id", "x-original-url")
# A line of the log has no header of the caller, no query and no body.
_LOG_LINE = {
    "time": "%START_TIME%",
    "event": "call",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",
    "protocol": "%PROTOCOL%",
    "http_status": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS%",
    "flags": "%RESPONSE_FLAGS%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
    "service": "%UPSTREAM_CLUSTER%",
    "replica": "%UPSTREAM_HOST%",
    "peer": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
}


def listeners(settings: GatewaySettings) -> Iterator[Json]:
    """Yield the listener of calls, and the one of metrics if it is asked for."""
    chain: Json = {"filters": [extension("calls", _MANAGER, **_manager(settings))]}
    if settings.downstream_tls is not None:
        context = downstream_tls_context(settings)
        chain["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    yield {
        "name": "calls",
        "address": socket_address(settings.listen.host, settings.listen.port),
        # Two processes on one port are a mistake that must be visible.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": MIB,
        "filter_chains": [chain],
    }
    if settings.metrics_listen is not None:
        yield _metrics(settings.metrics_listen.host, settings.metrics_listen.port)


def _manager(settings: GatewaySettings) -> Json:
    """Return how calls are read, logged and routed."""
    return {
        "stat_prefix": "calls",
        "server_name": "gateway",
        "codec_type": "AUTO",
        "route_config": route_table(settings),
        "http_filters": list(_http_filters(settings)),
        "local_reply_config": local_replies(),
        "access_log": [_access_log()],
        # The peer of the connection is the caller. No header says otherwise.
        "use_remote_address": True,
        "xff_num_trusted_hops": 0,
        "internal_address_config": {"cidr_ranges": []},
        "generate_request_id": False,
        "early_header_mutation_extensions": [
            extension("forged headers", _MUTATION, mutations=list(_removals()))
        ],
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "max_request_headers_kb": 64,
        "request_headers_timeout": "10s",
        # A route has the time of its RPC.
        "stream_idle_timeout": "120s",
        "drain_timeout": "10s",
        "common_http_protocol_options": {
            "idle_timeout": "900s",
            "max_headers_count": 100,
            "headers_with_underscores_action": "DROP_HEADER",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": 1000,
            "initial_stream_window_size": MIB // 4,
            "initial_connection_window_size": MIB,
            "connection_keepalive": {"interval": "30s", "timeout": "10s"},
        },
    }


def _http_filters(settings: GatewaySettings) -> Iterator[Json]:
    if settings.allowed_origins:
        yield extension(CORS_FILTER, f"{_FILTERS}.http.cors.v3.Cors")
    path = {"name": ":path", "string_match": {"exact": _HEALTH_PATH}}
    yield extension(
        "envoy.filters.http.health_check",
        f"{_FILTERS}.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[path],
    )
    yield extension("envoy.filters.http.grpc_web", f"{_FILTERS}.http.grpc_web.v3.GrpcWeb")
    if settings.connect_protocol:
        yield extension(
            "envoy.filters.http.connect_grpc_bridge", f"{_FILTERS}.http.connect_grpc_bridge.v3.FilterConfig"
        )
    yield extension(BUFFER_FILTER, BUFFER_TYPE, max_request_bytes=settings.max_message_bytes)
    yield {"name": FILTER, "typed_config": transcoder(settings, by_incoming_path=False)}
    yield extension(
        "envoy.filters.http.router",
        f"{_FILTERS}.http.router.v3.Router",
        suppress_envoy_headers=True,
        respect_expected_rq_timeout=False,
    )


def _removals() -> Iterator[Json]:
    for prefix in _FORGEABLE_PREFIXES:
        yield {"remove_on_match": {"key_matcher": {"prefix": prefix}}}
    for name in _FORGEABLE_NAMES:
        yield {"remove": name}


def _access_log() -> Json:
    return extension(
        "log",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"json_format": _LOG_LINE},
    )


def _metrics(host: str, port: int) -> Json:
    """Return a listener that shows the metrics and nothing else of the administration."""
    route: Json = {
        "match": {"path": "/metrics"},
        "route": {"cluster": ADMIN_CLUSTER, "prefix_rewrite": "/stats/prometheus"},
    }
    manager: Json = {
        "stat_prefix": "metrics",
        "route_config": {"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": [route]}]},
        "http_filters": [extension("envoy.filters.http.router", f"{_FILTERS}.http.router.v3.Router")],
    }
    return {
        "name": "metrics",
        "address": socket_address(host, port),
        "filter_chains": [{"filters": [extension("metrics", _MANAGER, **manager)]}],
    }
