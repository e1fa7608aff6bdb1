"""Back up PostgreSQL and S3 to one point, and restore them, as docs/howto/backup-and-restore.md says."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from minio import Minio
from psycopg.conninfo import conninfo_to_dict
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint, S3Server
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.watchdog import Watchdog

DELETING = ("session-worker", "attachment-blob-worker", "transcript-worker")
"""The processes that delete objects of sessions, which still run or were deleted, on their own."""
_SOCKET_LOCK = ".s.PGSQL.5432.lock"  # The socket is in the data directory, so it is copied too.


@asynccontextmanager
async def without_deletions(stack: Stack) -> AsyncIterator[None]:
    """Stop the workers for the block, as `kubectl scale --replicas 0` does."""
    for name in DELETING:
        await stack.processes[name].stop()
    try:
        yield
    finally:
        for name in DELETING:
            await stack.restart(name)


async def copy_rows(postgres: Postgres, target: Path) -> None:
    """Copy the server while it takes writes. The copy has the commits up to the end of this call."""
    host = Path(str(conninfo_to_dict(postgres.superuser_dsn)["host"]))
    target.mkdir(mode=0o700, parents=True)
    shutil.chown(target, host.owner())
    await postgres.run_program(
        "pg_basebackup", "-D", str(target), "-h", str(host), "-U", "postgres", "-c", "fast", "-X", "stream"
    )
    (target / _SOCKET_LOCK).unlink()


async def copy_objects(endpoint: S3Endpoint, target: Path) -> int:
    """Copy each object that is not in the target yet, and delete none there. Return how many."""
    return await asyncio.to_thread(_copy_objects, client_of(endpoint), target)


def client_of(endpoint: S3Endpoint) -> Minio:
    return Minio(
        endpoint.endpoint,
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        secure=False,
        region=endpoint.region,
    )


def _copy_objects(client: Minio, target: Path) -> int:
    copied = 0
    for bucket in client.list_buckets():
        (target / bucket.name).mkdir(parents=True, exist_ok=True)
        for item in client.list_objects(bucket.name, recursive=True):
            file = target / bucket.name / str(item.object_name)
            if not file.exists() and not item.is_dir:
                client.fget_object(bucket.name, str(item.object_name), str(file))
                copied += 1
    return copied


async def restore(backup: Path, data_dir: Path, *, keys: Path) -> None:
    """Make the data directory of a new mesh of a backup: another server, and another store."""
    data_dir.mkdir(mode=0o700, parents=True)
    (backup / "postgres").rename(data_dir / "postgres")
    shutil.copytree(keys, data_dir / "keys")
    with Watchdog() as watchdog:
        async with S3Server(
            data_dir / "s3", data_dir / "logs" / "s3.log", watchdog, lambda _line: None
        ) as s3:
            await asyncio.to_thread(_put_objects, client_of(s3.endpoint), backup / "objects")


def _put_objects(client: Minio, source: Path) -> None:
    for bucket in source.iterdir():
        client.make_bucket(bucket.name)
        for file in (one for one in bucket.rglob("*") if one.is_file()):
            client.fput_object(bucket.name, str(file.relative_to(bucket)), str(file))
