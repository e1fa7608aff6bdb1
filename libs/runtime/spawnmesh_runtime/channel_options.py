"""Options of gRPC servers and channels."""

import json
from functools import cache

from spawnmesh_runtime.methods import mesh_services, repeatable
from spawnmesh_runtime.settings import ProcessSettings

Options = list[tuple[str, str | int]]

# Time for a peer to complete the HTTP/2 handshake. A busy peer needs time; a missing one refuses at
# once.
_CONNECT_MS = 5_000
_PING_EVERY_MS = 30_000
_PING_TIMEOUT_MS = 5_000
# A refusal is sent in headers. The default limit is too small for one with many field violations.
_MAX_HEADER_BYTES = 64 * 1024

# A call reaches its own limit, and its caller the reason, before its connection is cut.
_GRACE_SHARE = 1.1


def open_server_options(settings: ProcessSettings) -> Options:
    """Return the options for a server whose RPCs need no token."""
    return [
        ("grpc.so_reuseport", 0),  # Two processes on one port are a mistake that must be visible.
        # Only uncompressed requests: gRPC inflates a message before a handler can refuse it.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", settings.max_connection_streams),
        # Unread data stays with the sender, except for 64 KiB: dynamic windows would buffer
        # megabytes for each call.
        ("grpc.http2.bdp_probe", 0),
        # A client looks for new replicas when a connection takes no further calls. Running calls
        # finish on the old connection, or are cut with it at the end of the grace.
        ("grpc.max_connection_age_ms", _milliseconds(settings.max_connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(settings.max_call_seconds * _GRACE_SHARE)),
    ]


def server_options(settings: ProcessSettings) -> Options:
    """Return the options for `grpc.aio.server`."""
    return [
        *_both_ends(settings),
        *open_server_options(settings),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 3),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_EVERY_MS // 3),
    ]


def peer_options(settings: ProcessSettings, certificate_host: str = "") -> Options:
    """Return the options for a channel to a service whose replicas come and go.

    The peer's certificate must have the name `certificate_host`, by default the host of the target.
    """
    named: Options = [("grpc.ssl_target_name_override", certificate_host)] if certificate_host else []
    return [
        *_both_ends(settings),
        *named,
        ("grpc.service_config", _service_config()),
        ("grpc.enable_http_proxy", 0),
        # A new channel does not share the backoff of another channel to the same address.
        ("grpc.use_local_subchannel_pool", 1),
        # A restarted peer must be found again sooner than by the default backoff of up to two
        # minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    ]


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def _both_ends(settings: ProcessSettings) -> Options:
    return [
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_metadata_size", _MAX_HEADER_BYTES),
        ("grpc.keepalive_time_ms", _PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


@cache
def _service_config() -> str:
    """Return the service config: round robin, and up to three attempts for calls that
    may be repeated.

    The contract states which RPCs may be repeated. CANCELLED is retryable because a server that
    stops answers it to a call that arrives in that moment.
    """
    methods = [
        {"service": service.full_name, "method": method.name}
        for service in mesh_services()
        for method in service.methods
        if repeatable(method)
    ]
    retry = {
        "maxAttempts": 3,
        "initialBackoff": "0.05s",
        "maxBackoff": "0.5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
    }
    return json.dumps(
        {
            "loadBalancingConfig": [{"round_robin": {}}],
            "methodConfig": [{"name": methods, "retryPolicy": retry}],
        }
    )
