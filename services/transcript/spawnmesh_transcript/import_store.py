"""The statements about imports as functions. Each runs in the caller's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb
from spawnmesh_core.line_chain import NO_LINES
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.store import Key

_SQL = load_statements("spawnmesh_transcript")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an import is; the table says what each is."""

    state: str = "IMPORTING"
    byte_count: int = 0
    line_count: int = 0
    entry_count: int = 0
    malformed: tuple[tuple[int, str], ...] = ()
    newest_source_id: str = ""
    leaf_entry_id: str = ""
    is_branched: bool = False
    incarnation: str = ""
    line_chain: bytes = NO_LINES
    chained_byte_count: int = 0

    @property
    def is_comparable(self) -> bool:
        """Whether the chain is that of all its bytes; not where a replica of the version before has gone on with it."""
        return self.chained_byte_count == self.byte_count


async def begin(connection: Connection, key: Key, *, incarnation: str) -> bool:
    """A transcript that nobody reads yet, and its import; False where the session has or had one.

    The import is ABORTED where one was left without its transcript: what there is of it is still to be removed.
    """
    parameters = {**_key(key), "incarnation": incarnation}
    if await (await connection.execute(_SQL["insert_importing"], parameters)).fetchone() is None:
        return False
    await connection.execute(_SQL["insert_import"], _key(key))
    return True


async def hold(connection: Connection, key: Key, incarnation: str) -> bool:
    """Lets nobody else change this very import until the transaction ends; False where it is complete, or gone, whatever came after it."""
    parameters = {**_key(key), "incarnation": incarnation}
    return (await connection.execute(_SQL["hold_import"], parameters)).rowcount == 1


async def read(connection: Connection, key: Key) -> Progress | None:
    """How far it is; None where the session has no import."""
    row = await (await connection.execute(_SQL["read_import"], _key(key))).fetchone()
    if row is None:
        return None
    malformed = tuple((int(line), str(problem)) for line, problem in row.pop("malformed"))
    return Progress(**row, malformed=malformed)


async def advance(connection: Connection, key: Key, known: Progress, reached: Progress) -> bool:
    """Writes how far it is now; False where another went on with it, or it is gone. Needs `hold`."""
    parameters = {
        **_key(key),
        "known_byte_count": known.byte_count,
        "known_line_chain": known.line_chain,
        "byte_count": reached.byte_count,
        "line_chain": reached.line_chain,
        "line_count": reached.line_count,
        "entry_count": reached.entry_count,
        "malformed": Jsonb(reached.malformed),
        "newest_source_id": reached.newest_source_id,
        "leaf_entry_id": reached.leaf_entry_id,
        "is_branched": reached.is_branched,
    }
    return (await connection.execute(_SQL["advance_import"], parameters)).rowcount == 1


async def known_entry_ids(connection: Connection, key: Key, entry_ids: Sequence[str]) -> set[str]:
    """Those that the transcript has already. Needs `keep_index_order`."""
    cursor = await connection.execute(_SQL["known_entry_ids"], {**_key(key), "entry_ids": list(entry_ids)})
    return {row["entry_id"] for row in await cursor.fetchall()}


async def seqs_of(connection: Connection, key: Key, entry_ids: Sequence[str]) -> list[int]:
    """Of those that the transcript has. Needs `keep_index_order`."""
    cursor = await connection.execute(_SQL["known_entry_ids"], {**_key(key), "entry_ids": list(entry_ids)})
    return [row["seq"] for row in await cursor.fetchall()]


async def entries_off_branch(connection: Connection, key: Key, leaf_entry_id: str) -> list[str]:
    """The messages that are not on the branch which ends there, oldest first. Needs `keep_index_order`."""
    cursor = await connection.execute(_SQL["entries_off_branch"], {**_key(key), "leaf_entry_id": leaf_entry_id})
    return [row["entry_id"] for row in await cursor.fetchall()]


async def complete(connection: Connection, key: Key, known: Progress) -> bool:
    """Lets the transcript be read; False where another went on with the import, or it is gone. Needs `hold`."""
    parameters = {**_key(key), "known_byte_count": known.byte_count, "known_line_chain": known.line_chain}
    if (await connection.execute(_SQL["complete_import"], parameters)).rowcount != 1:
        return False
    return (await connection.execute(_SQL["publish_import"], _key(key))).rowcount == 1


async def abort(connection: Connection, key: Key, *, age_seconds: float) -> bool:
    """Nothing goes on with it any more; False where it is complete, or somebody went on with it more lately. Needs `hold`."""
    parameters = {**_key(key), "age_seconds": age_seconds}
    return (await connection.execute(_SQL["abort_import"], parameters)).rowcount == 1


async def forget(connection: Connection, key: Key, incarnation: str) -> None:
    """An aborted one, whose entries are gone. Needs `hold`."""
    await connection.execute(_SQL["forget_importing"], {**_key(key), "incarnation": incarnation})
    await connection.execute(_SQL["forget_import"], _key(key))


async def stale(connection: Connection, tenant_id: str, *, age_seconds: float) -> list[tuple[Key, str | None]]:
    """Some imports that nobody went on with for so long, and their incarnations: None where the transcript is lost."""
    cursor = await connection.execute(_SQL["stale_imports"], {"tenant_id": tenant_id, "age_seconds": age_seconds})
    return [(Key(tenant_id, row["session_id"]), row["incarnation"]) for row in await cursor.fetchall()]


def _key(key: Key) -> dict[str, str]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id}
