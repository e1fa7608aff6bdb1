"""The backend of yoyo-migrations, and a workaround for it."""

from contextlib import nullcontext
from typing import Any
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict


def apply_and_record(migration: Any, backend: Any) -> None:
    """Apply a loaded migration and record it, in one transaction if it has transactions.

    yoyo's `apply_one` uses two: a process that is killed in between can never repeat the migration.
    """
    with backend.transaction() if migration.use_transactions else nullcontext():
        migration.process_steps(backend, "apply")
        backend.log_migration(migration, "apply")
        backend.mark_one(migration, log=False)


def yoyo_uri(owner_dsn: str, schema: str) -> str:
    """Return the URI of a yoyo backend that keeps its tables in the schema."""
    parts = {key: str(value) for key, value in conninfo_to_dict(owner_dsn).items() if value is not None}
    user = quote(parts.pop("user", ""), safe="")
    password = quote(parts.pop("password", ""), safe="")
    database = parts.pop("dbname", "spawnmesh")
    login = f"{user}:{password}" if password else user
    return f"postgresql+psycopg://{login}@/{database}?{urlencode({**parts, 'schema': schema})}"
