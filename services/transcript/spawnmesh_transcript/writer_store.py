"""The claim to be a transcript's writer. Each function is one round trip, a transaction of its own."""

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.store import Key, head_of

_SQL = load_statements("spawnmesh_transcript")


async def acquire_writer(database: Database, key: Key, claim: WriterClaim) -> tuple[Head, bool] | None:
    """Makes the claim the current one, unless it is too low: the head by then, and whether the claim is held. None without a transcript."""
    rows = await database.call(key.tenant_id, _SQL["acquire_writer"], _parameters(key, claim))
    return (head_of(rows[0]), rows[0]["is_held"]) if rows else None


async def release_writer(database: Database, key: Key, claim: WriterClaim) -> Head | None:
    """Ends the claim and every lower one, acquired or not: the head by then. None without a transcript."""
    rows = await database.call(key.tenant_id, _SQL["release_writer"], _parameters(key, claim))
    return head_of(rows[0]) if rows else None


def _parameters(key: Key, claim: WriterClaim) -> dict[str, str | int]:
    return {"session_id": key.session_id, "run_id": claim.run_id, "epoch": claim.epoch}
