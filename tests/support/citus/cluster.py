"""A Citus cluster of real PostgreSQL servers.

The servers run from a copy of the wheel's installation with the built extension in it, so that the
virtual environment stays as it was.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres, installation
from spawnmesh_devstack.service_roles import DATABASE

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


def host_of(server: Postgres) -> str:
    """Return the name of a node of the cluster: the directory of its socket."""
    return str(psycopg.conninfo.conninfo_to_dict(server.superuser_dsn)["host"])


def programs_below(root: Path) -> Path:
    """Return the installation that `install` makes below `root`."""
    wheel = installation()
    return root / wheel.parent.name / wheel.name


def settings_of(data_dir: Path) -> dict[str, str]:
    """Return the settings of a server on that data directory."""
    # Moves of shards connect to their own server too.
    return {**_SETTINGS, "citus.local_hostname": str(data_dir)}


def install(root: Path) -> Path:
    """Copy the wheel's installation below `root`, with the extension. May block for seconds."""
    wheel = installation()
    programs = programs_below(root)
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
                # The view citus_shards also measures every shard, which takes long.
                "select nodename from pg_dist_placement join pg_dist_node using (groupid)"
                " where shardid = get_shard_id_for_distribution_column(%s, %s::text)",
                (table, tenant),
            ).fetchone()
            placed.setdefault(row[0] if row else "", []).append(tenant)
    return placed
