"""The services behind a gateway: connections, health, and the bounds of both."""

import ipaddress
from collections.abc import Iterator

from spawnmesh_gateway.secrets import upstream_tls_context
from spawnmesh_gateway.settings import GatewaySettings, HostPort, addresses_of
from spawnmesh_gateway.typed import MIB, Json, socket_address, typed

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
ADMIN_CLUSTER = "administration"
_MAX_UPSTREAM_CALLS = 20_000
_MAX_WAITING_CALLS = 1024
# Calls that may be retries whatever the budget: a lost replica breaks several calls at once.
_MIN_RETRIES = 16


def clusters(settings: GatewaySettings) -> Iterator[Json]:
    """Yield a cluster for each service."""
    for service, target in settings.targets.items():
        yield _cluster(service, addresses_of(target), settings)
    if settings.metrics_listen is not None:
        yield _administration(settings)


def _cluster(service: str, addresses: list[HostPort], settings: GatewaySettings) -> Json:
    endpoints = [{"endpoint": {"address": socket_address(one.host, one.port)}} for one in addresses]
    are_numbers = all(_is_number(one.host) for one in addresses)
    cluster: Json = {
        "name": service,
        "type": "STATIC" if are_numbers else "STRICT_DNS",
        "connect_timeout": "5s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": service, "endpoints": [{"lb_endpoints": endpoints}]},
        "per_connection_buffer_limit_bytes": MIB,
        # Without a replica that serves, a call is refused at once.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "close_connections_on_host_health_failure": True,
        "ignore_health_on_host_removal": True,
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        "circuit_breakers": {"thresholds": [_thresholds("DEFAULT"), _thresholds("HIGH")]},
        "typed_extension_protocol_options": {HTTP_OPTIONS: typed(HTTP_OPTIONS, **_http2())},
    }
    if not are_numbers:
        cluster |= {"dns_refresh_rate": "5s", "respect_dns_ttl": False}
    if settings.upstream_tls is not None:
        host = settings.upstream_hosts.get(service, addresses[0].host)
        context = upstream_tls_context(settings, host)
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return cluster


def _http2() -> Json:
    return {
        "explicit_http_config": {
            "http2_protocol_options": {
                "max_concurrent_streams": 1000,
                "initial_stream_window_size": MIB // 4,
                "initial_connection_window_size": MIB,
                "connection_keepalive": {"interval": "30s", "timeout": "5s"},
            }
        }
    }


def _health_check() -> Json:
    """Return the standard check of gRPC, which a service answers without a token. A replica that
    stops says so before it closes its connections.
    """
    return {
        "timeout": "2s",
        "interval": "2s",
        "no_traffic_interval": "2s",
        "no_traffic_healthy_interval": "2s",
        "unhealthy_interval": "1s",
        "unhealthy_edge_interval": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {},
    }


def _outlier_detection() -> Json:
    """Eject a replica whose connections fail, and never one for its answers.

    Otherwise a tenant whose calls are refused as UNAVAILABLE, such as by its own plugin, would take
    the replica from all tenants.
    """
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 5,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "interval": "2s",
        "base_ejection_time": "5s",
        "max_ejection_time": "30s",
        "max_ejection_percent": 50,
    }


def _thresholds(priority: str) -> Json:
    return {
        "priority": priority,
        "max_connections": 512,
        "max_pending_requests": _MAX_WAITING_CALLS,
        "max_requests": _MAX_UPSTREAM_CALLS,
        "retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": _MIN_RETRIES},
    }


def _administration(settings: GatewaySettings) -> Json:
    """Return the cluster by which the listener of the metrics reaches them."""
    address = {"pipe": {"path": str(settings.admin_socket)}}
    return {
        "name": ADMIN_CLUSTER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": ADMIN_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
