"""The writer claim of a transcript. Each function is one round trip."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import supersedes
from spawnmesh_transcript.store.rows import head_of, key_parameters

_SQL = load_statements(__name__)
MAKE_HIGHER_CLAIM = _SQL["make_higher_claim"]

_ATTEMPTS = 3
"""A claim that was refused while the statement waited for a higher one is made again, so that the
answer has the head of that one.
"""


@dataclass(frozen=True, slots=True)
class MovedClaim:
    """The head after a claim was made or ended, or as it is if the claim was refused."""

    head: Head
    is_moved: bool
    has_retracted: bool
    """The claim that ended had a draft. A first piece that was being written may be missed: its
    watchers hear of the end when they look again.
    """


async def acquire_writer(database: Database, key: Key, claim: WriterClaim) -> MovedClaim | None:
    """Make the claim the current one, unless it is too low. Returns None if there is no
    transcript.
    """
    return await _move_claim(database, key, claim, new_run_id=claim.run_id)


async def release_writer(database: Database, key: Key, claim: WriterClaim) -> MovedClaim | None:
    """End the claim and every lower one, acquired or not. Returns None if there is no
    transcript.
    """
    return await _move_claim(database, key, claim, new_run_id="")


async def _move_claim(
    database: Database, key: Key, claim: WriterClaim, *, new_run_id: str
) -> MovedClaim | None:
    parameters = key_parameters(key, run_id=claim.run_id, epoch=claim.epoch, new_run_id=new_run_id)
    for _ in range(_ATTEMPTS):
        rows = await database.call(key.tenant_id, _SQL["move_claim"], parameters)
        if not rows:
            return None
        row = rows[0]
        moved = MovedClaim(head_of(row), bool(row["is_moved"]), bool(row["has_retracted"]))
        if moved.is_moved or not supersedes(claim, moved.head):
            break
    return moved
