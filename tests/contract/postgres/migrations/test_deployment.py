"""A replica describes its schema and the workers of its service, over real gRPC and a
real database.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh.deployment.v1 import deployment_service_pb2 as pb
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import DeploymentServiceStub
from spawnmesh_core.clock import utc_now
from spawnmesh_core.dependency_watch import POSTGRESQL
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.migration_files import migration_files
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database
from spawnmesh_postgres.worker_heartbeats import list_workers, send_heartbeats
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.serving import caller_at, client_tokens, served

FAULTS = {
    "the database does not answer": pb.DEPENDENCY_FAULT_UNREACHABLE,
    "the database is read-only": pb.DEPENDENCY_FAULT_READ_ONLY,
}
NEWEST = migration_files("spawnmesh_hook")[-1].migration_id


@pytest.fixture
def dsn(postgres: Postgres) -> ServiceDsn:
    """The migrated schema of hook, in its own database."""
    name = f"d_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=user, dbname=name) for user in ("hook", "hook_owner")
    )
    prepare_database(postgres.superuser_dsn, {"hook": DatabaseUrls(app, owner)})
    migrate(owner, package="spawnmesh_hook", schema="hook")
    return ServiceDsn(app, owner)


@pytest.fixture
async def database(dsn: ServiceDsn) -> AsyncIterator[Database]:
    async with open_database(dsn.app, name="hook", max_connections=2, wait_seconds=1.0) as opened:
        yield opened


@pytest.fixture
async def replica(database: Database, keys: Path) -> AsyncIterator[Peer]:
    """A peer of a server that has only DeploymentService."""

    @asynccontextmanager
    async def open_service(process: Process, _settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        workers = ["hook-worker", "another-worker"]
        add_deployment(server, database, "hook", workers, dependencies=process.dependencies)
        with process.dependencies.watching(POSTGRESQL, database.connections.check):
            yield server

    settings = ProcessSettings(jwks_file=keys / "jwks.json", log_level="error")
    async with served("hook", settings, open_service) as target, caller_at(target, "hook") as peer:
        yield peer


async def described(replica: Peer, keys: Path) -> pb.Replica:
    """Call DescribeReplica as an operator."""
    with use_token(client_tokens(keys).admin_token("operator", 60.0)):
        stub = DeploymentServiceStub(replica.channel)
        return (
            await replica.unary(stub.DescribeReplica, pb.DescribeReplicaRequest(), timeout_seconds=60)
        ).replica


def as_owner(dsn: ServiceDsn, statement: str) -> None:
    with psycopg.connect(dsn.owner, autocommit=True) as connection:
        connection.execute(statement)


async def test_DescribeReplica__release_and_current_schema(replica: Peer, keys: Path) -> None:
    told = await described(replica, keys)
    assert (told.service, told.version) == ("hook", version("spawnmesh-hook"))
    assert told.schema == pb.Schema(
        state=pb.SCHEMA_STATE_CURRENT, known_migration_id=NEWEST, applied_migration_id=NEWEST
    )


@pytest.mark.parametrize(
    ("statement", "state", "applied", "objection"),
    [
        ("insert into _yoyo_checksum values ('9999_more', 'x', false)", pb.SCHEMA_STATE_AHEAD, "9999_more", ""),
        (
            "insert into _yoyo_checksum values ('9999_less', 'x', true)",
            pb.SCHEMA_STATE_UNFIT,
            "9999_less",
            "the schema is too new: 9999_less took away what this version needs",
        ),
        (
            f"delete from _yoyo_checksum where migration_id = '{NEWEST}'",
            pb.SCHEMA_STATE_BEHIND,
            "",
            f"the schema is older: it lacks {NEWEST}",
        ),
        (
            f"update _yoyo_checksum set sha256 = 'x' where migration_id = '{NEWEST}'",
            pb.SCHEMA_STATE_UNFIT,
            NEWEST,
            f"the schema is another one: {NEWEST} was applied with another content",
        ),
        ("drop table _yoyo_checksum", pb.SCHEMA_STATE_BEHIND, "", "the schema is older: it lacks 0001_hook"),
        ("revoke connect on database {name} from public, hook; {end}", pb.SCHEMA_STATE_UNKNOWN, "", "the database does not answer"),
        ("alter database {name} set default_transaction_read_only = on; {end}", pb.SCHEMA_STATE_UNKNOWN, NEWEST, "the database is read-only"),
    ],
    ids=["ahead", "contracted", "behind", "edited", "empty", "away", "read-only"],
)  # fmt: skip
async def test_DescribeReplica__schema_state(
    replica: Peer, keys: Path, dsn: ServiceDsn, postgres: Postgres, statement: str, state: int, applied: str, objection: str
) -> None:  # fmt: skip
    if "{name}" in statement:
        name = psycopg.conninfo.conninfo_to_dict(dsn.app)["dbname"]
        end = f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{name}'"
        with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
            # One after the other: who connects again after the end must find the change committed.
            for one in statement.split("; "):
                connection.execute(one.format(name=name, end=end).encode())
    else:
        as_owner(dsn, statement)
    told = await described(replica, keys)
    schema, (dependency,) = told.schema, told.dependencies
    assert (schema.state, schema.applied_migration_id, schema.objection) == (state, applied, objection)
    assert schema.known_migration_id == NEWEST
    fault = FAULTS.get(objection, pb.DEPENDENCY_FAULT_UNSPECIFIED)
    assert (dependency.name, dependency.last_fault) == ("postgresql", fault)
    assert dependency.state == (pb.DEPENDENCY_STATE_DOWN if fault else pb.DEPENDENCY_STATE_UP)


@pytest.mark.parametrize("kind", ["client", "none"])
async def test_DescribeReplica__is_for_operators(replica: Peer, keys: Path, kind: str) -> None:
    token = client_tokens(keys).client_token("acme", "somebody", 60.0) if kind == "client" else "x.y.z"
    stub = DeploymentServiceStub(replica.channel)
    with use_token(token), pytest.raises(MeshError) as refused:
        await replica.unary(stub.DescribeReplica, pb.DescribeReplicaRequest(), timeout_seconds=60)
    assert refused.value.reason is (Reason.CALLER_NOT_ALLOWED if kind == "client" else Reason.TOKEN_INVALID)


async def test_DescribeReplica__counts_workers_that_are_there_and_names_those_that_never_were(
    replica: Peer, keys: Path, database: Database
) -> None:
    async def counted(count: int) -> pb.Worker:
        async with asyncio.timeout(60):
            while True:
                never, worker = (await described(replica, keys)).workers
                assert (never.name, never.process_count, never.HasField("last_seen_time")) == (
                    "another-worker",
                    0,
                    False,
                )
                if worker.process_count == count:
                    return worker
                await asyncio.sleep(0.02)

    both = [asyncio.create_task(send_heartbeats(database, "hook-worker")) for _ in range(2)]
    seen = await counted(2)
    assert seen.name == "hook-worker"
    assert abs(seen.last_seen_time.ToSeconds() - utc_now().timestamp()) < 10
    for count in (1, 0):
        both.pop().cancel()
        left = await counted(count)
    assert not left.HasField("last_seen_time"), "they stopped in good order"


async def test_worker_that_crashed_was_seen_last_when_it_was(database: Database, dsn: ServiceDsn) -> None:
    as_owner(
        dsn,
        "insert into _spawnmesh_worker values ('hook-worker', 'a', now() - interval '31 seconds'), "
        "('hook-worker', 'b', now() - interval '25 hours')",
    )
    (worker,) = await list_workers(database, ["hook-worker"])
    assert worker.process_count == 0
    assert worker.last_seen_time is not None
    assert 31 <= (utc_now() - worker.last_seen_time).total_seconds() < 3600
    another = asyncio.create_task(send_heartbeats(database, "another-worker"))
    async with asyncio.timeout(60):
        while not (await list_workers(database, ["another-worker"]))[0].process_count:
            await asyncio.sleep(0.02)
    another.cancel()
    async with database.transaction("*") as connection:
        rows = await (
            await connection.execute("select process_id from _spawnmesh_worker where name = 'hook-worker'")
        ).fetchall()
    assert [row["process_id"] for row in rows] == ["a"], "what crashed a day ago is forgotten"


async def test_worker_beats_on_when_its_table_is_gone_for_a_while(
    database: Database, dsn: ServiceDsn
) -> None:
    as_owner(dsn, "alter table _spawnmesh_worker rename to away")
    beating = asyncio.create_task(send_heartbeats(database, "hook-worker", interval_seconds=0.01))
    done, _ = await asyncio.wait([beating], timeout=0.2)
    assert not done
    as_owner(dsn, "alter table away rename to _spawnmesh_worker")
    async with asyncio.timeout(60):
        while not (await list_workers(database, ["hook-worker"]))[0].process_count:
            await asyncio.sleep(0.02)
    beating.cancel()
