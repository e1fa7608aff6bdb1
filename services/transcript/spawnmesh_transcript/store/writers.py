"""The writer claim of a transcript. Each function is one round trip and one transaction."""

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.rows import head_of

_SQL = load_statements(__name__)


async def acquire_writer(database: Database, key: Key, claim: WriterClaim) -> tuple[Head, bool] | None:
    """Make the claim the current one, unless it is too low.

    Returns the head after that and whether the claim is held; None if there is no transcript.
    """
    rows = await database.call(key.tenant_id, _SQL["acquire_writer"], _parameters(key, claim))
    return (head_of(rows[0]), rows[0]["is_held"]) if rows else None


async def release_writer(database: Database, key: Key, claim: WriterClaim) -> Head | None:
    """End the claim and every lower one, acquired or not.

    Returns the head after that; None if there is no transcript.
    """
    rows = await database.call(key.tenant_id, _SQL["release_writer"], _parameters(key, claim))
    return head_of(rows[0]) if rows else None


def _parameters(key: Key, claim: WriterClaim) -> dict[str, str | int]:
    return {"session_id": key.session_id, "run_id": claim.run_id, "epoch": claim.epoch}
