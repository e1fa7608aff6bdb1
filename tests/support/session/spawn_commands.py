"""Spawns for tests that call the saga itself, since they replace a part of it."""

from datetime import timedelta
from uuid import uuid4

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_session.domain.spawns import SpawnSpec
from spawnmesh_session.operations.spawn_saga import SpawnCommand

from tests.support.session.harness import attachment


def spawn_command(*, has_file: bool = True) -> SpawnCommand:
    """Return a spawn of the agent `default` under a new request_id."""
    spec = SpawnSpec(
        session_id=new_id(IdKind.SESSION),
        request_id=uuid4().hex,
        payload_hash=b"same",
        task_hash="",
        agent_id="default",
        label="",
        model="",
        mode="RUN",
        context="ISOLATED",
        cleanup="DELETE",
        runtime="SUBAGENT",
        run_timeout=timedelta(hours=1),
        parent_session_id="",
        parent_run_id="",
        mount_path="",
        attachment_count=int(has_file),
        traceparent="",
    )
    return SpawnCommand(spec, "count", [attachment()] if has_file else [], [])
