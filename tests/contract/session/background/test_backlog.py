"""The gauges of runs, and of what should have been cleaned up by now."""

from typing import Any

import psycopg
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_session.gauges import Gauges

from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of, make_due, work_once


async def test_backlog_counts_deletions_until_they_are_finished(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains
) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    async with components_of(mesh.settings) as components:
        reader = InMemoryMetricReader()
        backlog = Gauges(components.database, MeterProvider([reader]).get_meter("test"))
        await only_of(remains.dsn, mesh.tenant)
        await backlog.measure()
        before = gauge_values(reader)
        async with open_mesh(elsewhere={"attachment-blob": "127.0.0.1:1"}) as broken:
            broken.tenant = mesh.tenant
            request = pb.DeleteSessionRequest(session_id=session.session_id)
            await broken.client(broken.sessions.DeleteSession, request)
        await make_due(remains.dsn, mesh.tenant)
        await backlog.measure()
        assert gauge_values(reader)["delete"] == before["delete"] + 1
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        await backlog.measure()
        assert gauge_values(reader)["delete"] == 0
    assert before.keys() == {"spawn", "delete", "purge", "settings", "event", "retain", "job"}


async def test_live_runs_are_counted_by_whether_a_runner_has_them(mesh: Mesh, remains: Remains) -> None:
    async with components_of(mesh.settings) as components:
        reader = InMemoryMetricReader()
        backlog = Gauges(components.database, MeterProvider([reader]).get_meter("test"))
        await only_of(remains.dsn, mesh.tenant)
        first, _second = await mesh.spawn(), await mesh.spawn()
        await mesh.claim(first.session_id)
        await backlog.measure()
        assert gauge_values(reader, "spawnmesh.session.runs", "spawnmesh.session.run.state") == {
            "waiting": 1,
            "held": 1,
        }


async def only_of(superuser_dsn: str, tenant: str) -> None:
    """Remove the entries of other tests from the queue, since the gauges count all tenants."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        await link.execute("delete from session.work_queue where tenant_id <> %s", (tenant,))


def gauge_values(
    reader: InMemoryMetricReader,
    gauge: str = "spawnmesh.session.cleanup.backlog",
    attribute: str = "spawnmesh.session.cleanup.kind",
) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = [one for one in data.resource_metrics[0].scope_metrics[0].metrics if one.name == gauge]
    points: Any = metric.data.data_points
    return {point.attributes[attribute]: point.value for point in points}
