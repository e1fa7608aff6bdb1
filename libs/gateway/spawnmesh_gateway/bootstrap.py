"""The configuration with which Envoy starts. Nothing in it changes while Envoy runs."""

import json

from spawnmesh_gateway.clusters import clusters
from spawnmesh_gateway.listener import listeners
from spawnmesh_gateway.secrets import secrets
from spawnmesh_gateway.settings import GatewaySettings
from spawnmesh_gateway.transcoding import CONTRACTS_FILE, descriptor_set
from spawnmesh_gateway.typed import Json, extension

BOOTSTRAP_FILE = "envoy.json"
_MONITORS = "envoy.extensions.resource_monitors"


def configuration(settings: GatewaySettings) -> dict[str, bytes]:
    """Return the files of a gateway by name. Envoy starts with the first one."""
    return {
        BOOTSTRAP_FILE: _text(bootstrap(settings)),
        **{name: _text(secret) for name, secret in secrets(settings).items()},
        CONTRACTS_FILE: descriptor_set(),
    }


def _text(content: Json) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def bootstrap(settings: GatewaySettings) -> Json:
    """Return the main file."""
    content: Json = {
        "node": {"id": "gateway", "cluster": "gateway"},
        "static_resources": {
            "listeners": list(listeners(settings)),
            "clusters": list(clusters(settings)),
        },
        "overload_manager": _overload_manager(settings),
    }
    if settings.admin_socket is not None:
        content["admin"] = {"address": {"pipe": {"path": str(settings.admin_socket), "mode": 0o600}}}
    return content


def _overload_manager(settings: GatewaySettings) -> Json:
    """Return the bounds of memory and of connections. Above them, the newest ones are refused."""
    heap, connections = "envoy.resource_monitors.fixed_heap", _CONNECTIONS
    return {
        "refresh_interval": "0.25s",
        # Streams that hold a megabyte or more are ended, the largest first.
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": 20},
        "resource_monitors": [
            extension(
                heap,
                f"{_MONITORS}.fixed_heap.v3.FixedHeapConfig",
                max_heap_size_bytes=settings.max_heap_bytes,
            ),
            extension(
                connections,
                f"{_MONITORS}.downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=settings.max_connections,
            ),
        ],
        "actions": [
            _action("shrink_heap", heap, 0.85),
            {
                "name": "envoy.overload_actions.reset_high_memory_stream",
                "triggers": [
                    {"name": heap, "scaled": {"scaling_threshold": 0.88, "saturation_threshold": 0.95}}
                ],
            },
            _action("stop_accepting_requests", heap, 0.92),
            _action("stop_accepting_connections", heap, 0.97),
        ],
    }


_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"


def _action(name: str, resource: str, share: float) -> Json:
    trigger = {"name": resource, "threshold": {"value": share}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}
