"""Refusals of a spawn after which its child may still run."""

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.tools.calling.spawn_outcome import may_have_spawned


@pytest.mark.parametrize(
    ("reason", "may_run"),
    [
        (Reason.REQUEST_ID_REUSED, True),
        (Reason.DEADLINE_EXCEEDED, True),
        (Reason.DEPENDENCY_UNAVAILABLE, True),
        (Reason.SPAWN_IN_PROGRESS, True),
        (Reason.CANCELLED, True),
        (Reason.UNKNOWN_AGENT, False),
        (Reason.SPAWN_DEPTH_EXCEEDED, False),
        (Reason.SPAWN_REFUSED, False),
        (Reason.INVALID_REQUEST, False),
    ],
)
def test_a_child_may_run_after_transient_refusals(reason: Reason, may_run: bool) -> None:
    assert may_have_spawned(MeshError(reason, "refused")) is may_run
