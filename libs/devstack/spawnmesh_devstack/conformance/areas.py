"""The areas that can be replayed, by name, with the function that replays one case."""

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
from spawnmesh_devstack.conformance.cases import Case, CaseResult
from spawnmesh_devstack.conformance.mesh import MeshAccess

Area = Callable[[MeshAccess, Case], Awaitable[CaseResult]]
"""Replay one case. Raises BadCase for a case that cannot be replayed, and MeshError for an
unexpected refusal of the mesh.
"""

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
