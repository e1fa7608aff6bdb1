"""The metrics of a connection pool, as a scrape reads them."""

import asyncio
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_postgres.database import open_database


@pytest.fixture
async def dsn(postgres: Postgres) -> str:
    return (await create_service_database(postgres.superuser_dsn, ["scratch"]))["scratch"].app


async def test_connections_in_use_are_counted_at_collection(dsn: str) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
    async with open_database(dsn, name="scratch", max_connections=3, meter=meter) as database:
        seen = [_in_use(reader)]
        async with database.transaction("acme"), database.transaction("zeta"):
            seen.append(_in_use(reader))
        try:
            async with database.transaction("acme") as connection:
                await connection.execute("select 1 / 0")
        except psycopg.errors.DivisionByZero:
            seen.append(_in_use(reader))
    assert seen == [0, 2, 0]


async def test_recording_does_not_delay_the_answer(dsn: str) -> None:
    """The values are recorded when the task that released the connection next waits."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
    async with open_database(dsn, name="scratch", max_connections=1, meter=meter) as database:
        for done_count in range(3):  # The first one waits for its connection to be made.
            async with database.transaction("acme") as connection:
                await connection.execute("select 1")
            assert _recorded(reader) == {_WAITS: done_count, _OPERATIONS: done_count}
            await asyncio.sleep(0)
            assert _recorded(reader) == {_WAITS: done_count + 1, _OPERATIONS: done_count + 1}


_WAITS, _OPERATIONS = "db.client.connection.wait_time", "db.client.operation.duration"


def _recorded(reader: InMemoryMetricReader) -> dict[str, int]:
    """Return the number of recorded values for each histogram."""
    told = {metric.name: metric for metric in _metrics(reader)}
    points: dict[str, Any] = {
        name: told[name].data.data_points if name in told else [] for name in (_WAITS, _OPERATIONS)
    }
    return {name: sum(point.count for point in of_metric) for name, of_metric in points.items()}


def _in_use(reader: InMemoryMetricReader) -> int:
    (metric,) = (metric for metric in _metrics(reader) if metric.name == "db.client.connection.count")
    (point,) = metric.data.data_points
    assert dict(point.attributes or {}) == {
        "db.client.connection.pool.name": "scratch",
        "db.client.connection.state": "used",
    }
    # Points of sums have a value; those of histograms are not among them.
    return int(point.value)  # type: ignore[union-attr]


def _metrics(reader: InMemoryMetricReader) -> list[Metric]:
    data = reader.get_metrics_data()
    assert data is not None
    return [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
