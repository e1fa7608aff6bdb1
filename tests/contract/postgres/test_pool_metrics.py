"""What a pool tells of itself, as whoever fetches the metrics hears it."""

import psycopg
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_postgres.database import open_database


async def test_connections_in_use_are_told_as_they_are_when_somebody_asks(postgres: Postgres) -> None:
    dsn = (await create_service_database(postgres.superuser_dsn, ["scratch"]))["scratch"].app
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


def _in_use(reader: InMemoryMetricReader) -> int:
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "db.client.connection.count"
    ]
    (point,) = metric.data.data_points
    assert dict(point.attributes or {}) == {
        "db.client.connection.pool.name": "scratch",
        "db.client.connection.state": "used",
    }
    return int(point.value)  # type: ignore[union-attr]  # Points of sums have a value; those of histograms are not among them.
