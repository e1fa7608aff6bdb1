"""Options of gRPC servers."""

from spawnmesh_calls.channel_options import PING_EVERY_MS, Options, both_ends

from spawnmesh_runtime.settings import ProcessSettings

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
        *both_ends(settings.max_message_bytes),
        *open_server_options(settings),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_EVERY_MS // 3),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_EVERY_MS // 3),
    ]


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)
