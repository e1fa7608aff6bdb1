"""How connections are kept, on both ends."""

import json
from functools import cache

from spawnmesh_runtime.methods import mesh_services, repeatable
from spawnmesh_runtime.settings import ProcessSettings

Options = list[tuple[str, str | int]]

_CONNECTION_AGE_MS = (
    60_000  # A client looks for new replicas when a connection ends; running calls are let finish on the old one.
)
_CONNECT_MS = 5_000  # An attempt has so long until the peer has greeted; a busy one takes its time, and one that is not there refuses at once.
_PING_EVERY_MS = 30_000
_PING_TIMEOUT_MS = 5_000
_MAX_HEADER_BYTES = (
    64 * 1024
)  # Refusals travel in headers; the transport's own limit is too near to one with many violations.


def server_options(settings: ProcessSettings) -> Options:
    """For `grpc.aio.server`."""
    return [
        *_both_ends(settings),
        ("grpc.so_reuseport", 0),  # Two processes on one port is a mistake that must show.
        # What nobody reads yet stays with its sender, but for 64 KiB: windows that grow with the line would be megabytes for each call.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_connection_age_ms", _CONNECTION_AGE_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 3),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_EVERY_MS // 3),
    ]


def peer_options(settings: ProcessSettings) -> Options:
    """For a channel to a service with several replicas, some of which come and go."""
    return [
        *_both_ends(settings),
        ("grpc.service_config", _service_config()),
        ("grpc.enable_http_proxy", 0),
        # A new channel is no heir to the failures of another one to the same address.
        ("grpc.use_local_subchannel_pool", 1),
        # A peer that restarts must be found again in well under the default of up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    ]


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
    """Replicas in turn; one call is tried up to three times where nobody answered and its contract says that repeating is safe.

    CANCELLED is what a call gets that reaches a server in the instant in which it stops.
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
        {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": methods, "retryPolicy": retry}]}
    )
