"""Plugins have their registered time, and not the time of a step of the session service."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from spawnmesh.session.v1 import session_pb2

from tests.support.serving import caller_at
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.plugins import Plugin, plugged

STEP_SECONDS = 1.0
THINKS_SECONDS = 7.0  # Longer than a step and all that used to be added to one; plugins have 15 s.


@pytest.fixture
async def brief(open_mesh: OpenMesh) -> AsyncIterator[Mesh]:
    """With little time for each step."""
    async with open_mesh(step_timeout_seconds=STEP_SECONDS) as mesh:
        await mesh.create_tenant()
        yield mesh


async def think(_session_id: str) -> None:
    await asyncio.sleep(THINKS_SECONDS)


async def test_gates_are_waited_for_as_long_as_their_plugins_may_take(
    brief: Mesh, peers: dict[str, str]
) -> None:
    held = await brief.claim((await brief.spawn()).session_id)
    async with caller_at(peers["transcript"], "transcript") as transcript:
        offered = await draft(transcript, held, "done")
    async with plugged(brief, peers, Plugin(meanwhile=think)):
        spawned, finalized = await asyncio.gather(
            brief.spawn(), brief.run(held, brief.runs.FinalizeRun, offered)
        )
    assert spawned.state == session_pb2.SESSION_STATE_ACTIVE
    assert finalized.HasField("accepted")
