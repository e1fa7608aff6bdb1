"""Event keys of a run never equal those of other publishers."""

from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import ENDED, HookMesh, Tenant

CALLED = events.HOOK_KIND_AFTER_TOOL_CALL


async def called(tenant: Tenant, *keys: str, run_id: str = "run_1") -> int:
    """Publish a run's events with these keys. Return the number of queued deliveries."""
    published = [
        observed.ObservedEvent(
            event_key=key, session_id="ses_1", run_id=run_id, after_tool_call=observed.AfterToolCallEvent()
        )
        for key in keys
    ]
    answer: pb.PublishEventsResponse = await tenant.as_run(
        "PublishEvents", pb.PublishEventsRequest(events=published), run_id=run_id
    )
    return answer.queued_count


async def test_PublishEvents__a_run_cannot_take_a_key_of_the_session_service(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("observer", plugin.endpoint, ENDED, CALLED)
    key = "subagent_ended:v1:ses_2:run_2"
    assert await called(tenant, key, f"run:run_2:{key}") == 2
    assert await called(tenant, key, run_id="run_2") == 1
    assert await tenant.ended(key, session_id="ses_2", run_id="run_2") == 1
    await deliveries.run_due()
    assert sorted(event.event_key for event in plugin.heard) == sorted(
        [key, f"run:run_1:{key}", f"run:run_1:run:run_2:{key}", f"run:run_2:{key}"]
    )


async def test_PublishEvents__a_long_key_of_a_run_is_delivered_once(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("observer", plugin.endpoint, CALLED)
    long = "k" * 255
    assert await called(tenant, "k", "k", f"{long}1", f"{long}1", f"{long}2") == 3
    await deliveries.run_due()
    heard = {event.event_key for event in plugin.heard}
    assert len(heard) == 3
    assert all(len(key) <= 256 for key in heard)
