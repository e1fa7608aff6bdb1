"""A real PgBouncer in transaction mode, in front of the tests' PostgreSQL."""

import asyncio
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.postgres import Postgres

from tests.support.serving import until_open

_PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(
    _PGBOUNCER is None,
    reason="there is no pgbouncer: install Debian's package pgbouncer (`apt-get install pgbouncer`)",
)


@asynccontextmanager
async def open_pooler(
    postgres: Postgres, roles: Sequence[str], *, server_connections: int
) -> AsyncIterator[Callable[[str], str]]:
    """Open a pooler that admits the roles, with a number of connections for each database.

    Yields a function that turns a DSN into the DSN through the pooler.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-pgbouncer-") as folder:
        root = Path(folder)
        root.chmod(0o777)  # It does not run as root, and becomes another account.
        (root / "users.txt").write_text("".join(f'"{role}" ""\n' for role in roles))
        host = conninfo_to_dict(postgres.superuser_dsn)["host"]
        (root / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={host}\n[pgbouncer]\npool_mode = transaction\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {root / 'users.txt'}\ndefault_pool_size = {server_connections}\nmax_client_conn = 200\n"
            f"server_login_retry = 1\nlogfile = {root / 'pgbouncer.log'}\n"
        )
        # The server's socket lies in its data directory, which only its own account enters.
        account = ["-u", Path(str(host)).owner()] if os.geteuid() == 0 else []
        assert _PGBOUNCER is not None
        pooler = await asyncio.create_subprocess_exec(
            _PGBOUNCER, "-q", *account, str(root / "pgbouncer.ini"), stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            await until_open(port)
            yield lambda dsn: make_conninfo(dsn, host="127.0.0.1", port=port)
        finally:
            pooler.kill()
            await pooler.wait()
            print((root / "pgbouncer.log").read_text())  # Shown where the test fails.
