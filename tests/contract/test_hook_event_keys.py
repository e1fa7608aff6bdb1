"""Keys of events: a run's are its own, whatever it calls them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.tellers import Tellers

from tests.contract.hook_fixtures import ENDED, HookMesh, Tenant, events, open_mesh

CALLED = events.HOOK_KIND_AFTER_TOOL_CALL


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def tenant(mesh: HookMesh) -> Tenant:
    return mesh.tenant(await mesh.replica())


@pytest.fixture
async def tellers(mesh: HookMesh) -> Tellers:
    return await mesh.tellers()


async def called(tenant: Tenant, *keys: str, run_id: str = "run_1") -> int:
    """A run tells of calls under these keys; how many tellings were queued."""
    told = [
        observed.ObservedEvent(
            event_key=key, session_id="ses_1", run_id=run_id, after_tool_call=observed.AfterToolCallEvent()
        )
        for key in keys
    ]
    answer: pb.PublishEventsResponse = await tenant.as_run(
        "PublishEvents", pb.PublishEventsRequest(events=told), run_id=run_id
    )
    return answer.queued_count


async def test_PublishEvents__no_run_takes_the_key_of_what_the_session_service_will_tell(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("observer", plugin.endpoint, ENDED, CALLED)
    key = "subagent_ended:v1:ses_2:run_2"
    assert await called(tenant, key, f"run:run_2:{key}") == 2
    assert await called(tenant, key, run_id="run_2") == 1
    assert await tenant.ended(key, session_id="ses_2", run_id="run_2") == 1
    await tellers.tell_due()
    assert sorted(event.event_key for event in plugin.heard) == sorted(
        [key, f"run:run_1:{key}", f"run:run_1:run:run_2:{key}", f"run:run_2:{key}"]
    )


async def test_PublishEvents__a_runs_key_tells_once_whatever_its_length(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("observer", plugin.endpoint, CALLED)
    long = "k" * 255
    assert await called(tenant, "k", "k", f"{long}1", f"{long}1", f"{long}2") == 3
    await tellers.tell_due()
    heard = {event.event_key for event in plugin.heard}
    assert len(heard) == 3
    assert all(len(key) <= 256 for key in heard)
