"""DeploymentService, which every service with a database serves: its release, its schema, its workers."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any

import psycopg
from grpc import aio
from psycopg_pool import PoolTimeout
from spawnmesh.deployment.v1 import deployment_service_pb2 as pb
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import (
    DeploymentServiceServicer,
    add_DeploymentServiceServicer_to_server,
)

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.schema_version import Standing, standing_of, until_schema_known
from spawnmesh_postgres.worker_beats import SeenWorker, workers_seen

Context = aio.ServicerContext[Any, Any]
AnsweringAlone = Callable[[Callable[[aio.Server], None]], AbstractAsyncContextManager[object]]
"""A server that refuses everything but what the function adds to it, for as long as the block lasts."""


class DeploymentServicer(DeploymentServiceServicer):
    """One RPC."""

    def __init__(
        self,
        service: str,
        schema: Callable[[], Awaitable[Standing]],
        workers: Callable[[], Awaitable[Sequence[SeenWorker]]],
    ) -> None:
        self._service = service
        self._schema = schema
        self._workers = workers

    async def DescribeReplica(self, request: pb.DescribeReplicaRequest, context: Context) -> pb.DescribeReplicaResponse:
        schema = await self._schema()
        workers = [] if schema.objection else await self._workers()
        return pb.DescribeReplicaResponse(
            replica=pb.Replica(
                service=self._service,
                version=version(f"spawnmesh-{self._service}"),
                schema=_rendered_schema(schema),
                workers=map(_rendered_worker, workers),
            )
        )


def add_deployment(server: aio.Server, database: Database, service: str, workers: Sequence[str] = ()) -> None:
    """Serves it for the service, by kebab id, whose package is named after it; `workers` are those that there should be."""

    async def schema() -> Standing:
        return await standing_of(database, package=_package_of(service))

    async def seen() -> Sequence[SeenWorker]:
        try:
            return await workers_seen(database, workers)
        except (psycopg.Error, PoolTimeout):
            return [SeenWorker(name, 0, None) for name in workers]

    add_DeploymentServiceServicer_to_server(DeploymentServicer(service, schema, seen), server)


async def await_schema(service: str, dsn: str, answering_alone: AnsweringAlone) -> None:
    """Waits until the schema is one that the service runs on. Whoever asks meanwhile is told why it waits."""

    def meanwhile(found: Callable[[], Standing]) -> AbstractAsyncContextManager[object]:
        async def schema() -> Standing:
            return found()

        async def nobody() -> Sequence[SeenWorker]:
            return ()

        servicer = DeploymentServicer(service, schema, nobody)
        return answering_alone(lambda server: add_DeploymentServiceServicer_to_server(servicer, server))

    await until_schema_known(dsn, package=_package_of(service), meanwhile=meanwhile)


def _package_of(service: str) -> str:
    return f"spawnmesh_{service.replace('-', '_')}"


def _rendered_schema(schema: Standing) -> pb.Schema:
    return pb.Schema(
        state=pb.SchemaState.Value(f"SCHEMA_STATE_{schema.state}"),
        known_migration_id=schema.known_id,
        applied_migration_id=schema.applied_id,
        objection=schema.objection,
    )


def _rendered_worker(worker: SeenWorker) -> pb.Worker:
    rendered = pb.Worker(name=worker.name, process_count=worker.process_count)
    if worker.last_seen_time is not None:
        rendered.last_seen_time.FromDatetime(worker.last_seen_time)
    return rendered
