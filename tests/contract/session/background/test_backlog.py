"""The gauges of runs and of background jobs."""

import asyncio
from dataclasses import replace
from typing import Any
from urllib.request import urlopen

import psycopg
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.approval_pb2 import EXPIRY_POLICY_ESCALATE
from spawnmesh_devstack.ports import free_ports
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_session.app import make_job_worker
from spawnmesh_session.domain.job_kinds import DELETE_SESSION, FOLLOW_UPS
from spawnmesh_session.gauges import Gauges

from tests.support.session.approvals import approve, ask, call_key, get, let_expire, waiting_run
from tests.support.session.budgets import Spending
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of, make_due, work_once


async def test_jobs_are_counted_until_they_are_done(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains
) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    async with components_of(mesh.settings) as components:
        reader = InMemoryMetricReader()
        metrics = JobMetrics(MeterProvider([reader]).get_meter("test"))
        worker = make_job_worker(replace(components, job_metrics=metrics), mesh.settings)
        await only_of(remains.dsn, mesh.tenant)
        async with open_mesh(elsewhere={"attachment-blob": "127.0.0.1:1"}) as broken:
            broken.tenant = mesh.tenant
            request = pb.DeleteSessionRequest(session_id=session.session_id)
            await broken.client(broken.sessions.DeleteSession, request)
        await make_due(remains.dsn, mesh.tenant)
        await worker.measure()
        assert waiting(reader)[DELETE_SESSION] == 1
        assert gauge_values(reader, "spawnmesh.jobs.oldest.age", "spawnmesh.job.kind")[DELETE_SESSION] > 0
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        await worker.measure()
        found = waiting(reader)
    assert found[DELETE_SESSION] == 0
    assert found.keys() == {
        *FOLLOW_UPS,
        *("undo_spawn", "clean_up_spawn", "delete_session", "delete_family", "operation"),
        *("push_settings", "expire_model_call", "wake_budget", "fire_schedule"),
    }


async def test_live_runs_are_counted_by_whether_a_runner_has_them(mesh: Mesh, remains: Remains) -> None:
    async with components_of(mesh.settings) as components:
        reader = InMemoryMetricReader()
        backlog = Gauges(components.database, MeterProvider([reader]).get_meter("test"))
        await only_of(remains.dsn, mesh.tenant)
        await waiting_run(mesh)
        await Spending(mesh).waiting_run()
        first, _second = await mesh.spawn(), await mesh.spawn()
        await mesh.claim(first.session_id)
        await backlog.measure()
        assert gauge_values(reader, "spawnmesh.session.runs", "spawnmesh.session.run.state") == {
            "waiting": 1,
            "held": 1,
            "waiting_approval": 1,
            "waiting_budget": 1,
        }


async def test_age_of_the_queue_is_that_of_the_oldest_run_that_a_runner_could_have(
    mesh: Mesh, remains: Remains
) -> None:
    async with components_of(mesh.settings) as components:
        reader = InMemoryMetricReader()
        backlog = Gauges(components.database, MeterProvider([reader]).get_meter("test"))
        await only_of(remains.dsn, mesh.tenant)
        await waiting_run(mesh)
        held, delayed = (await mesh.spawn()).session_id, (await mesh.spawn()).session_id
        await mesh.claim(held)
        await set_due(remains.dsn, mesh.tenant, {delayed: -1000})
        await backlog.measure()
        assert oldest_ages(reader) == {"subagent": 0, "external": 0}
        oldest, newer = (await mesh.spawn()).session_id, (await mesh.spawn()).session_id
        await set_due(remains.dsn, mesh.tenant, {oldest: 1000, newer: 10})
        await backlog.measure()
        ages = oldest_ages(reader)
        assert 1000 <= ages["subagent"] < 2000
        assert ages["external"] == 0


async def test_age_of_the_oldest_approval_is_measured_until_a_person_decides(
    mesh: Mesh, postgres: Any, remains: Remains
) -> None:
    (port,) = free_ports(1)
    settings = mesh.settings.model_copy(update={"metrics_listen": f"127.0.0.1:{port}"})
    await only_of(remains.dsn, mesh.tenant)

    async with components_of(settings) as components:

        async def oldest() -> float:
            await components.gauges.measure()
            return await asyncio.to_thread(served, port, "spawnmesh_session_approvals_oldest_age_seconds")

        budget = await Spending(mesh).waiting_run()
        assert await oldest() == 0
        held, _, first = await waiting_run(mesh, on_expiry=EXPIRY_POLICY_ESCALATE)
        _, _, second = await waiting_run(mesh)
        await park_earlier(remains.dsn, {held.run.run_id: 1000, second.run_id: 100, budget.run.run_id: 5000})
        assert 1000 <= await oldest() < 2000
        await let_expire(mesh, postgres, first.approval_id)
        assert (await get(mesh, first.approval_id)).HasField("escalate_time")
        assert 1000 <= await oldest() < 2000, "an escalated approval goes on waiting"
        await approve(mesh, first.approval_id)
        assert 100 <= await oldest() < 1000
        await approve(mesh, second.approval_id)
        assert await oldest() == 0
        await ask(mesh, await mesh.claim(held.run.session_id), call_key())
        assert 0 < await oldest() < 100, "the next wait of the run is a new one"


def served(port: int, series: str) -> float:
    """Return the value of a series without labels from the metrics of the process."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    (value,) = [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(value)


async def park_earlier(superuser_dsn: str, seconds_ago: dict[str, float]) -> None:
    """Set since when the parked runs wait."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        for run_id, seconds in seconds_ago.items():
            await link.execute(
                "update session.run_queue set park_time = now() - make_interval(secs => %s)"
                " where parked and run_id = %s",
                (seconds, run_id),
            )


def oldest_ages(reader: InMemoryMetricReader) -> dict[str, float]:
    return gauge_values(reader, "spawnmesh.session.queue.oldest.age", "spawnmesh.session.runtime")


async def set_due(superuser_dsn: str, tenant: str, seconds_ago: dict[str, float]) -> None:
    """Set since when the runs of the sessions can be claimed."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        for session_id, seconds in seconds_ago.items():
            await link.execute(
                "update session.run_queue q set due_time = now() - make_interval(secs => %s) "
                "from session.runs r where r.run_id = q.run_id and r.session_id = %s and q.tenant_id = %s",
                (seconds, session_id, tenant),
            )


async def only_of(superuser_dsn: str, tenant: str) -> None:
    """Remove the entries of other tests from the queue, since the gauges count all tenants."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        for table in ("run_queue", "jobs"):
            await link.execute(f"delete from session.{table} where tenant_id <> %s", (tenant,))


def gauge_values(reader: InMemoryMetricReader, gauge: str, attribute: str) -> dict[str, Any]:
    return {point.attributes[attribute]: point.value for point in points_of(reader, gauge)}


def waiting(reader: InMemoryMetricReader) -> dict[str, Any]:
    return {
        point.attributes["spawnmesh.job.kind"]: point.value
        for point in points_of(reader, "spawnmesh.jobs")
        if point.attributes["spawnmesh.job.state"] == "waiting"
    }


def points_of(reader: InMemoryMetricReader, gauge: str) -> Any:
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = [one for one in data.resource_metrics[0].scope_metrics[0].metrics if one.name == gauge]
    return metric.data.data_points
