"""Messages that wait for a session's next turn."""

from datetime import datetime

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import storable
from spawnmesh_session.store.statements import SQL

_MAX_LIST_BYTES = 3 * 1024 * 1024  # An answer is less than the 4 MiB that gRPC takes by default.


async def insert(
    connection: Connection,
    tenant_id: str,
    session_id: str,
    key: str,
    text: str,
    *,
    child_session_id: str = "",
    child_run_state: str = "",
) -> bool:
    """Puts a message in, once for each key; False where the key is known."""
    values = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "key": key,
        "text": storable(text),
        "child_session_id": child_session_id,
        "child_run_state": child_run_state,
    }
    return await (await connection.execute(SQL["insert_inbox_message"], values)).fetchone() is not None


async def text_of(connection: Connection, tenant_id: str, session_id: str, key: str) -> str | None:
    """What the message of that key says, taken out or not."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "key": key}
    row = await (await connection.execute(SQL["get_inbox_text"], values)).fetchone()
    return str(row["text"]) if row else None


async def list_waiting(database: Database, tenant_id: str, session_id: str) -> list[DictRow]:
    """At most 100 waiting messages, oldest first; fewer where their texts are large, but one at least. In a transaction of its own."""
    return await database.call(tenant_id, SQL["list_inbox"], {"session_id": session_id, "max_bytes": _MAX_LIST_BYTES})


async def count_waiting(
    connection: Connection, tenant_id: str, session_id: str, *, arrived_after: datetime | None = None
) -> int:
    """Messages that wait: all, or those that came after a moment."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "arrived_after": arrived_after}
    row = await (await connection.execute(SQL["count_inbox"], values)).fetchone()
    return int(row["waiting"]) if row else 0


async def measure_sent(connection: Connection, tenant_id: str, session_id: str) -> tuple[int, int]:
    """How many sent messages wait, and their bytes; children's results do not count."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    row = await (await connection.execute(SQL["measure_inbox"], values)).fetchone()
    return (int(row["waiting"]), int(row["size_bytes"])) if row else (0, 0)


async def acknowledge(connection: Connection, tenant_id: str, session_id: str, keys: list[str]) -> None:
    """Takes messages out; those that are out stay out."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "keys": keys}
    await connection.execute(SQL["acknowledge_inbox"], values)
