"""Options of gRPC channels, and those that both ends of a connection share."""

import json
from functools import cache

from spawnmesh_calls.contracts import mesh_services, repeatable

Options = list[tuple[str, str | int]]

# Time for a peer to complete the HTTP/2 handshake. A busy peer needs time; a missing one refuses at
# once.
_CONNECT_MS = 5_000
PING_EVERY_MS = 30_000
_PING_TIMEOUT_MS = 5_000
# A refusal is sent in headers. The default limit is too small for one with many field violations.
_MAX_HEADER_BYTES = 64 * 1024


def peer_options(max_message_bytes: int, certificate_host: str = "") -> Options:
    """Return the options for a channel to a service whose replicas come and go.

    The peer's certificate must have the name `certificate_host`, by default the host of the target.
    """
    named: Options = [("grpc.ssl_target_name_override", certificate_host)] if certificate_host else []
    return [
        *both_ends(max_message_bytes),
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


def both_ends(max_message_bytes: int) -> Options:
    """Return the options that a channel and its server share."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_metadata_size", _MAX_HEADER_BYTES),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


@cache
def _service_config() -> str:
    """Return the service config: round robin, and up to three attempts for calls that
    may be repeated.

    The contract states which RPCs may be repeated. CANCELLED is retryable because a server that
    stops answers it to a call that arrives in that moment. There is no `timeout`: gRPC ends a call
    a second or two before it (grpc/grpc#34547), and would cut longer deadlines of callers.
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
