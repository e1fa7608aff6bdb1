"""Brings a service's schema to the newest version, once, however many replicas try at the same time."""

from importlib.resources import as_file, files
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict
from yoyo import get_backend, read_migrations

_LOCK_KEY = 0x5350574E  # "SPWN": one advisory lock for each database; it goes away with its connection, so a killed migration leaves none.


def _yoyo_uri(owner_dsn: str, schema: str) -> str:
    parts = {key: str(value) for key, value in conninfo_to_dict(owner_dsn).items() if value is not None}
    user = quote(parts.pop("user", ""), safe="")
    password = quote(parts.pop("password", ""), safe="")
    database = parts.pop("dbname", "spawnmesh")
    login = f"{user}:{password}" if password else user
    return f"postgresql+psycopg://{login}@/{database}?{urlencode({**parts, 'schema': schema})}"


def migrate(owner_dsn: str, *, package: str, schema: str) -> list[str]:
    """Applies the package's `migrations/*.sql` that the schema lacks, in order, each in a transaction; returns their names.

    Connects as the schema's owner, never as the role that serves. Forward only. Waits while another migration of this database runs.
    """
    with psycopg.connect(owner_dsn, autocommit=True) as lock, as_file(files(package) / "migrations") as folder:
        lock.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
        backend = get_backend(_yoyo_uri(owner_dsn, schema))
        try:
            pending = backend.to_apply(read_migrations(str(folder)))
            backend.apply_migrations(pending)
            return [migration.id for migration in pending]
        finally:
            backend.connection.close()
