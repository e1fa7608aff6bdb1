"""What can be replayed: each area by its name, with the function that replays one of its cases."""

from collections.abc import Awaitable, Callable, Mapping

from spawnmesh_devstack.conformance import (
    attachments_name,
    attachments_validate,
    failover_classify,
    finalize_merge,
    images_partial,
    lcm_disambiguator,
    native_relay_stop,
    redact_spawn,
    transcript_pairing,
)
from spawnmesh_devstack.conformance.cases import Case, Verdict
from spawnmesh_devstack.conformance.mesh import ReachedMesh

Area = Callable[[ReachedMesh, Case], Awaitable[Verdict]]
"""Replays one case. Raises BadCase for one that it cannot, and MeshError where the mesh refuses what no case expects it to."""

AREAS: Mapping[str, Area] = {
    "attachments_name": attachments_name.replay,
    "attachments_validate": attachments_validate.replay,
    "failover_classify": failover_classify.replay,
    "finalize_merge": finalize_merge.replay,
    "images_partial": images_partial.replay,
    "lcm_disambiguator": lcm_disambiguator.replay,
    "native_relay_stop": native_relay_stop.replay,
    "redact_spawn": redact_spawn.replay,
    "transcript_pairing": transcript_pairing.replay,
}
