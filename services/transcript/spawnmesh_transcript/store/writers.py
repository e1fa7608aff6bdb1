"""The writer claim of a transcript. Each function is one round trip."""

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import supersedes
from spawnmesh_transcript.store.rows import head_of, key_parameters

_SQL = load_statements(__name__)

_ATTEMPTS = 3
"""A claim that was refused while the statement waited for a higher one is made again, so that the
answer has the head of that one.
"""


async def acquire_writer(database: Database, key: Key, claim: WriterClaim) -> tuple[Head, bool] | None:
    """Make the claim the current one, unless it is too low.

    Returns the head after that and whether the claim is held; None if there is no transcript.
    """
    return await _move_claim(database, key, claim, new_run_id=claim.run_id)


async def release_writer(database: Database, key: Key, claim: WriterClaim) -> Head | None:
    """End the claim and every lower one, acquired or not.

    Returns the head after that; None if there is no transcript.
    """
    released = await _move_claim(database, key, claim, new_run_id="")
    return released[0] if released else None


async def _move_claim(
    database: Database, key: Key, claim: WriterClaim, *, new_run_id: str
) -> tuple[Head, bool] | None:
    """Return the head, and whether the claim was moved."""
    parameters = key_parameters(key, run_id=claim.run_id, epoch=claim.epoch, new_run_id=new_run_id)
    for _ in range(_ATTEMPTS):
        rows = await database.call(key.tenant_id, _SQL["move_claim"], parameters)
        if not rows:
            return None
        head, is_moved = head_of(rows[0]), bool(rows[0]["is_moved"])
        if is_moved or not supersedes(claim, head):
            break
    return head, is_moved
