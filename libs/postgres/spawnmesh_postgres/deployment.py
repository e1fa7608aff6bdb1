"""DeploymentService of every service with a database: release, dependencies, schema, workers."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from spawnmesh_core.dependency_watch import (
    POSTGRESQL,
    DependencyDown,
    DependencyFault,
    DependencyStatus,
    DependencyWatch,
)

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.schema_version import (
    SchemaState,
    SchemaStatus,
    schema_status,
    unknown_schema,
    wait_for_schema,
)
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
        dependencies: DependencyWatch,
    ) -> None:
        self._service = service
        self._schema = schema
        self._workers = workers
        self._dependencies = dependencies

    async def DescribeReplica(
        self, request: pb.DescribeReplicaRequest, context: Context
    ) -> pb.DescribeReplicaResponse:
        dependencies = await self._dependencies.look()
        if _is_silent(POSTGRESQL, dependencies):
            # Reading would only take seconds more.
            schema = unknown_schema(_package_of(self._service))
        else:
            schema = await self._schema()
        workers = [] if schema.objection else await self._workers()
        return pb.DescribeReplicaResponse(
            replica=pb.Replica(
                service=self._service,
                version=version(f"spawnmesh-{self._service}"),
                schema=_rendered_schema(schema),
                workers=map(_rendered_worker, workers),
                host_name=socket.gethostname(),
                dependencies=map(_rendered_dependency, dependencies),
            )
        )


def add_deployment(
    server: aio.Server,
    database: Database,
    service: str,
    workers: Sequence[str] = (),
    *,
    dependencies: DependencyWatch,
) -> None:
    """Add the DeploymentService of a service, given by kebab id.

    `workers` are its expected workers.
    """

    async def schema() -> SchemaStatus:
        return await schema_status(database, package=_package_of(service))

    async def present() -> Sequence[WorkerPresence]:
        try:
            return await list_workers(database, workers)
        except (psycopg.Error, PoolTimeout):
            return []

    servicer = DeploymentServicer(service, schema, present, dependencies)
    add_DeploymentServiceServicer_to_server(servicer, server)


async def await_schema(
    service: str, dsn: str, serve_not_ready: ServeNotReady, dependencies: DependencyWatch
) -> None:
    """Wait until the service can run on the schema.

    DescribeReplica reports the cause while it waits. The database is a dependency meanwhile.
    """

    @asynccontextmanager
    async def meanwhile(found: Callable[[], SchemaStatus]) -> AsyncIterator[None]:
        async def schema() -> SchemaStatus:
            return found()

        async def no_workers() -> Sequence[WorkerPresence]:
            return ()

        async def check() -> None:
            if found().state is SchemaState.UNKNOWN:
                raise DependencyDown(DependencyFault.UNREACHABLE)

        servicer = DeploymentServicer(service, schema, no_workers, dependencies)
        with dependencies.watching(POSTGRESQL, check):
            async with serve_not_ready(
                lambda server: add_DeploymentServiceServicer_to_server(servicer, server)
            ):
                yield

    await wait_for_schema(dsn, package=_package_of(service), meanwhile=meanwhile)


def _is_silent(name: str, dependencies: Sequence[DependencyStatus]) -> bool:
    return any(
        one.name == name and one.is_up is False and one.last_fault is not DependencyFault.READ_ONLY
        for one in dependencies
    )


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


def _rendered_dependency(dependency: DependencyStatus) -> pb.Dependency:
    states = {
        None: pb.DEPENDENCY_STATE_UNSPECIFIED,
        True: pb.DEPENDENCY_STATE_UP,
        False: pb.DEPENDENCY_STATE_DOWN,
    }
    rendered = pb.Dependency(name=dependency.name, state=states[dependency.is_up])
    rendered.since_time.FromDatetime(dependency.since_time)
    if dependency.last_fault is not None and dependency.last_fault_time is not None:
        rendered.last_fault = pb.DependencyFault.Value(f"DEPENDENCY_FAULT_{dependency.last_fault}")
        rendered.last_fault_time.FromDatetime(dependency.last_fault_time)
    return rendered
