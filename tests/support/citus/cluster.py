"""A Citus cluster of real PostgreSQL servers: a coordinator and two workers.

The servers run from a copy of the wheel's installation with the built extension in it, so that the
virtual environment stays as it was.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres, installation
from spawnmesh_devstack.service_roles import DATABASE
from spawnmesh_devstack.watchdog import Watchdog

PORT = 5432
_PLACE = "SPAWNMESH_CITUS"
_SETTINGS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    "max_prepared_transactions": "200",
    "citus.node_conninfo": "sslmode=prefer",
    "citus.shard_count": "4",
    # A transaction that a killed worker had prepared is decided soon after its restart.
    "citus.recover_2pc_interval": "1s",
    # Tests kill processes and not the machine.
    "fsync": "off",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The servers of a cluster. The database of the mesh exists on each and is registered."""

    coordinator: Postgres
    workers: tuple[Postgres, ...]

    @property
    def superuser_dsn(self) -> str:
        """The superuser's DSN of the mesh's database on the coordinator."""
        return _dsn(self.coordinator, DATABASE)


def why_missing() -> str:
    """Return why no cluster can be started, or '' if one can."""
    folder = os.environ.get(_PLACE)
    if not folder or not (Path(folder) / "lib" / "citus.so").exists():
        return f"no built Citus extension: {_PLACE} names the folder with its `lib` and `extension`"
    return ""


@asynccontextmanager
async def citus_cluster(root: Path, watchdog: Watchdog) -> AsyncIterator[Cluster]:
    """Start the servers below `root`, register the workers, and stop all at the end."""
    programs = await asyncio.to_thread(_install, root)
    async with AsyncExitStack() as stack:
        servers = [_server(root / name, watchdog, programs) for name in ("coordinator", "one", "two")]
        await asyncio.gather(*(stack.enter_async_context(server) for server in servers))
        cluster = Cluster(servers[0], tuple(servers[1:]))
        await asyncio.to_thread(create_database, cluster, DATABASE)
        yield cluster


def host_of(server: Postgres) -> str:
    """Return the name of a node of the cluster: the directory of its socket."""
    return str(psycopg.conninfo.conninfo_to_dict(server.superuser_dsn)["host"])


def _install(root: Path) -> Path:
    wheel = installation()
    programs = root / wheel.parent.name / wheel.name
    shutil.copytree(wheel, programs, symlinks=True)
    libraries = wheel.parent.with_name(f"{wheel.parent.name}.libs")  # The programs look for them there.
    if libraries.exists():
        shutil.copytree(libraries, root / libraries.name)
    built = Path(os.environ[_PLACE])
    for file in (built / "lib").glob("*.so"):
        shutil.copyfile(file, programs / "lib" / file.name)
    for file in (built / "extension").iterdir():
        shutil.copyfile(file, programs / "share" / "extension" / file.name)
    return programs


def _server(folder: Path, watchdog: Watchdog, programs: Path) -> Postgres:
    folder.mkdir()
    return Postgres(
        folder / "data",
        folder / "postgres.log",
        watchdog,
        lambda _line: None,
        programs=programs,
        # Moves of shards connect to their own server too.
        settings={**_SETTINGS, "citus.local_hostname": str(folder / "data")},
    )


def create_database(cluster: Cluster, name: str, *, is_registered: bool = True) -> None:
    """Create a database on every server, as one cluster unless `is_registered` is false."""
    for server in (cluster.coordinator, *cluster.workers):
        with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
    if is_registered:
        register(cluster, name)


def register(cluster: Cluster, name: str) -> None:
    """Make the database of the coordinator one that is distributed over the workers."""
    for server in (cluster.coordinator, *cluster.workers):
        with psycopg.connect(_dsn(server, name), autocommit=True) as connection:
            connection.execute("create extension citus")
    with psycopg.connect(_dsn(cluster.coordinator, name), autocommit=True) as connection:
        connection.execute("select citus_set_coordinator_host(%s, %s)", (host_of(cluster.coordinator), PORT))
        for worker in cluster.workers:
            connection.execute("select citus_add_node(%s, %s)", (host_of(worker), PORT))


def _dsn(server: Postgres, database: str) -> str:
    return make_conninfo(server.superuser_dsn, dbname=database)


def tenants_on_each_node(cluster: Cluster, table: str, tenants: list[str]) -> dict[str, list[str]]:
    """Return which of the tenants are on which node, by the shards that Citus names."""
    placed: dict[str, list[str]] = {}
    with psycopg.connect(cluster.superuser_dsn) as connection:
        for tenant in tenants:
            row = connection.execute(
                "select nodename from citus_shards"
                " where table_name = %s::regclass and shardid = get_shard_id_for_distribution_column(%s, %s::text)",
                (table, table, tenant),
            ).fetchone()
            placed.setdefault(row[0] if row else "", []).append(tenant)
    return placed
