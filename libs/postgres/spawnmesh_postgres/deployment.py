"""DeploymentService of every service with a database: its release, schema and workers."""

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
from spawnmesh_postgres.schema_version import SchemaStatus, schema_status, wait_for_schema
from spawnmesh_postgres.worker_heartbeats import WorkerPresence, list_workers

Context = aio.ServicerContext[Any, Any]
ServeNotReady = Callable[[Callable[[aio.Server], None]], AbstractAsyncContextManager[object]]
"""Serve only the services that the function adds, for the block."""


class DeploymentServicer(DeploymentServiceServicer):
    """Implement DescribeReplica."""

    def __init__(
        self,
        service: str,
        schema: Callable[[], Awaitable[SchemaStatus]],
        workers: Callable[[], Awaitable[Sequence[WorkerPresence]]],
    ) -> None:
        self._service = service
        self._schema = schema
        self._workers = workers

    async def DescribeReplica(
        self, request: pb.DescribeReplicaRequest, context: Context
    ) -> pb.DescribeReplicaResponse:
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
    """Add the DeploymentService of a service, given by kebab id.

    `workers` are its expected workers.
    """

    async def schema() -> SchemaStatus:
        return await schema_status(database, package=_package_of(service))

    async def present() -> Sequence[WorkerPresence]:
        try:
            return await list_workers(database, workers)
        except (psycopg.Error, PoolTimeout):
            return [WorkerPresence(name, 0, None) for name in workers]

    add_DeploymentServiceServicer_to_server(DeploymentServicer(service, schema, present), server)


async def await_schema(service: str, dsn: str, serve_not_ready: ServeNotReady) -> None:
    """Wait until the service can run on the schema.

    DescribeReplica reports the cause while it waits.
    """

    def meanwhile(found: Callable[[], SchemaStatus]) -> AbstractAsyncContextManager[object]:
        async def schema() -> SchemaStatus:
            return found()

        async def no_workers() -> Sequence[WorkerPresence]:
            return ()

        servicer = DeploymentServicer(service, schema, no_workers)
        return serve_not_ready(lambda server: add_DeploymentServiceServicer_to_server(servicer, server))

    await wait_for_schema(dsn, package=_package_of(service), meanwhile=meanwhile)


def _package_of(service: str) -> str:
    return f"spawnmesh_{service.replace('-', '_')}"


def _rendered_schema(schema: SchemaStatus) -> pb.Schema:
    return pb.Schema(
        state=pb.SchemaState.Value(f"SCHEMA_STATE_{schema.state}"),
        known_migration_id=schema.known_id,
        applied_migration_id=schema.applied_id,
        objection=schema.objection,
    )


def _rendered_worker(worker: WorkerPresence) -> pb.Worker:
    rendered = pb.Worker(name=worker.name, process_count=worker.process_count)
    if worker.last_seen_time is not None:
        rendered.last_seen_time.FromDatetime(worker.last_seen_time)
    return rendered
