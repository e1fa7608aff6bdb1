"""ListDeliveries: filters and pages."""

from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import ENDED, FINALIZE, SPAWN, HookMesh, Tenant, refused
from tests.support.hook.scripted_plugin import ALLOW, revise


async def test_ListDeliveries__newest_first_by_run_plugin_decision_and_time(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    gate, reviewer, observer = await mesh.plugin(ALLOW), await mesh.plugin(revise("no")), await mesh.plugin()
    await tenant.register("gate", gate.endpoint, SPAWN)
    await tenant.register("reviewer", reviewer.endpoint, FINALIZE)
    await tenant.register("observer", observer.endpoint, ENDED)
    await tenant.spawn(session_id="ses_1")
    await tenant.draft("k", session_id="ses_1", run_id="run_1")
    await tenant.ended(session_id="ses_2", run_id="run_2")
    await deliveries.run_due()
    rows = await tenant.deliveries()
    assert [
        (row.plugin, row.hook, row.session_id, row.run_id, decision_of(row), row.error, row.attempt)
        for row in rows
    ] == [
        ("observer", ENDED, "ses_2", "run_2", "told", "", 1),
        ("reviewer", FINALIZE, "ses_1", "run_1", "revise", "", 1),
        ("gate", SPAWN, "ses_1", "", "allow", "", 1),
    ]
    starts = [row.start_time.ToNanoseconds() for row in rows]
    assert starts == sorted(starts, reverse=True)
    assert all(row.latency.ToNanoseconds() > 0 for row in rows)

    async def names(**conditions: Any) -> list[str]:
        return [row.plugin for row in await tenant.deliveries(**conditions)]

    assert await names(session_id="ses_1") == ["reviewer", "gate"]
    assert await names(run_id="run_1") == ["reviewer"]
    assert await names(plugin="gate") == ["gate"]
    assert await names(decision="told") == ["observer"]
    assert await names(start_time=rows[1].start_time) == ["observer", "reviewer"]
    assert await names(end_time=rows[1].start_time) == ["gate"]
    assert await names(session_id="ses_3") == []
    with refused(Reason.INVALID_REQUEST):
        await names(end_time=Timestamp(seconds=10**15))


async def test_ListDeliveries__page_by_page(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN)
    for number in range(5):
        await tenant.spawn(session_id=f"ses_{number}")
    seen, token = [], ""
    while True:
        page = await tenant.as_client(
            "ListDeliveries", pb.ListDeliveriesRequest(page_size=2, page_token=token)
        )
        seen += [row.session_id for row in page.deliveries]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"ses_{number}" for number in reversed(range(5))]
    with refused(Reason.INVALID_REQUEST):
        await tenant.as_client("ListDeliveries", pb.ListDeliveriesRequest(page_token="bm8="))
