"""The limits of the calls of each tenant of `spawnmesh up`: one tenant leaves two cores to others.

They are those of the chart's values, and a test compares the two.
"""

import json
from collections.abc import Mapping

from spawnmesh_devstack.members import SERVICES, prefix_of

SHARED_CALL_LIMITS: Mapping[str, Mapping[str, int]] = {
    "read": {"calls_per_second": 50, "burst_seconds": 4, "concurrent_call_count": 16},
    "write": {"calls_per_second": 30, "burst_seconds": 5, "concurrent_call_count": 32},
    "spawn": {"calls_per_second": 2, "burst_seconds": 15, "concurrent_call_count": 4},
    "transfer": {
        "calls_per_second": 5,
        "burst_seconds": 10,
        "bytes_per_second": 32 * 1024 * 1024,
        "concurrent_call_count": 16,
    },
    "scan": {"calls_per_second": 5, "burst_seconds": 10, "concurrent_call_count": 4},
    "generate": {"calls_per_second": 5, "burst_seconds": 10, "concurrent_call_count": 64},
    "watch": {"calls_per_second": 30, "burst_seconds": 5, "concurrent_call_count": 1024},
}
"""By class of RPC. Two cores run some nine sessions a second, so a tenant may spawn two."""


def call_limit_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of each service with these limits, or as the environment has it."""
    names = [f"{prefix_of(service)}CALL_LIMITS" for service in SERVICES]
    return {name: environment.get(name, json.dumps(SHARED_CALL_LIMITS)) for name in names}
