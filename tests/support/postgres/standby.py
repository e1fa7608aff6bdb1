"""A synchronous standby of a PostgreSQL, from the programs of the same wheel."""

import shutil
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.waiting import eventually

_SOCKET_LOCK = ".s.PGSQL.5432.lock"  # The socket is in the data directory, so it is copied too.


async def start_standby(primary: Postgres, data_dir: Path, watchdog: Watchdog) -> Postgres:
    """Start a standby over `data_dir`, and let every commit of the primary wait for it."""
    await _copy(primary, data_dir)
    standby = Postgres(data_dir, data_dir.parent / "standby.log", watchdog, lambda _line: None)
    await standby.start()
    # Set after the copy: the standby waits for no other server when it is promoted.
    execute(primary, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
    await eventually(lambda: rows(primary, "select 1 from pg_stat_replication where sync_state = 'sync'"))
    return standby


def promote(standby: Postgres) -> None:
    """Make the standby a primary; return when it takes writes."""
    execute(standby, "select pg_promote()")


async def rejoin(former: Postgres, data_dir: Path, primary: Postgres) -> None:
    """Start a killed primary again, as a standby of the promoted server."""
    shutil.rmtree(data_dir)
    await _copy(primary, data_dir)
    await former.start()
    await eventually(lambda: rows(primary, "select 1 from pg_stat_replication where state = 'streaming'"))


async def _copy(primary: Postgres, data_dir: Path) -> None:
    host = Path(str(conninfo_to_dict(primary.superuser_dsn)["host"]))
    data_dir.mkdir(mode=0o700)
    shutil.chown(data_dir, host.owner())
    copy = ("-D", str(data_dir), "-h", str(host), "-U", "postgres", "-R", "-c", "fast", "-X", "stream")
    await primary.run_program("pg_basebackup", *copy)
    (data_dir / _SOCKET_LOCK).unlink()


def execute(server: Postgres, *statements: str) -> None:
    """Run statements as superuser, each in a transaction of its own."""
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rows(server: Postgres, query: str) -> list[tuple[object, ...]]:
    """Return the rows of a query as superuser, in the database `postgres`."""
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()
