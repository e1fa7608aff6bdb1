"""The gauge of what should have been cleaned up by now."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_session.operations.backlog import Backlog

from tests.contract.session.harness import Mesh, OpenMesh, attachment
from tests.contract.session.remains import Remains
from tests.contract.session.worker import make_due, parts_of, work_once


async def test_backlog_counts_deletions_until_they_are_finished(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains
) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    async with parts_of(mesh.settings) as parts:
        reader = InMemoryMetricReader()
        backlog = Backlog(parts.database, MeterProvider([reader]).get_meter("test"))
        await backlog.measure()
        before = told(reader)
        async with open_mesh(elsewhere={"attachment-blob": "127.0.0.1:1"}) as broken:
            broken.tenant = mesh.tenant
            request = pb.DeleteSessionRequest(session_id=session.session_id)
            await broken.client(broken.sessions.DeleteSession, request)
        await make_due(remains.dsn, mesh.tenant)
        await backlog.measure()
        assert told(reader)["delete"] == before["delete"] + 1
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        await backlog.measure()
        assert told(reader)["delete"] == 0
    assert before.keys() == {"spawn", "delete", "purge", "settings", "retain", "job"}


def told(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "spawnmesh.session.cleanup.backlog"
    points: Any = metric.data.data_points
    return {point.attributes["spawnmesh.session.cleanup.kind"]: point.value for point in points}
