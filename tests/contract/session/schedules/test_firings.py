"""The due times of schedules: they are fired once, and stand in the history."""

from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.session.v1 import session_service_pb2 as session_pb

from tests.support.session.harness import Mesh
from tests.support.session.schedules import SPAWNED, Clockwork


@pytest.fixture
def clockwork(mesh: Mesh, postgres: Any) -> Clockwork:
    return Clockwork(mesh, postgres)


async def test_a_due_time_spawns_one_session(clockwork: Clockwork) -> None:
    schedule = await clockwork.put()
    assert len(schedule.upcoming_times) == 5
    await clockwork.pass_time(timedelta(minutes=1))
    await clockwork.fire()
    [fired] = await clockwork.history()
    assert (fired.outcome, fired.is_manual) == (SPAWNED, False)
    session = await clockwork.mesh.get(fired.session_id)
    assert session.metadata["schedule"] == "nightly"
    assert (await clockwork.get()).last_firing == fired
    await clockwork.fire()
    assert await clockwork.history() == [fired]
    listed = await clockwork.mesh.client(
        clockwork.mesh.sessions.ListSessions, session_pb.ListSessionsRequest()
    )
    assert [one.session_id for one in listed.sessions] == [fired.session_id]
