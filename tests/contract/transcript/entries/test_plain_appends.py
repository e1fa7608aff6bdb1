"""Plain appends, which one statement makes: the same rows as `append_waiting` writes, and
untouched rows if a rule refuses one."""

import secrets
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database
from spawnmesh_transcript.domain.appends import Append
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, WriterClaim
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store.appends import append_batch

from tests.support.transcript.fixtures import Session
from tests.support.transcript.stored_rows import check_chain_of, stored_rows
from tests.support.transcript.tables import Superuser


def _drawn(random: Random, kind: EntryKind, role: Role | None) -> NewEntry:
    """Generate an entry that refers to no other, with any values that it may have."""
    return NewEntry(
        kind,
        random.randbytes(random.choice([0, 1, 300])),
        token_count=random.randrange(50),
        role=role,
        calls=tuple(f'call {n}, "quoted" {{}}' for n in range(random.randrange(3))),
        answers=random.choice(["", "call-1"]),
        is_synthetic=random.random() < 0.5,
        parent_entry_id=random.choice(["", new_id(IdKind.ENTRY)]),
        token_vocabulary=random.choice([*Vocabulary]),
    )


async def test_a_plain_append_stores_the_rows_of_a_general_append(
    session: Session, database: Database, superuser: Superuser
) -> None:
    seed = secrets.randbits(32)
    random = Random(seed)
    twin = session.sibling()
    await twin.create()
    # Two transcripts with the same history.
    twins = "update transcripts set chain_hash = 'x', newest_entry_id = 'ent_x' where tenant_id = %s"
    await superuser.execute(twins, (session.tenant_id,))
    claim = await session.acquire(3)
    await twin.acquire(3, run_id=claim.run_id)
    writers = [
        Writer(claim=WriterClaim(claim.run_id, 3)),
        Writer(service="session"),
        Writer(client="gateway"),
    ]
    for kind, role in product(EntryKind, [None, *Role]):
        if role is Role.NOTE:
            continue
        key, entry = secrets.token_hex(8), _drawn(random, kind, role)
        append = Append(
            Key(session.tenant_id, session.session_id),
            (entry,),
            key,
            random.randbytes(32),
            random.choice(writers),
            0,
        )
        (plain,) = await append_batch(database, session.tenant_id, [append])
        other = replace(append, key=Key(twin.tenant_id, twin.session_id))
        longer = await append_store.append_waiting(database, other)
        assert plain.head is not None
        assert longer.head is not None
        head = replace(
            longer.head, incarnation=plain.head.incarnation, chain_hash=plain.head.chain_hash
        )  # The hash covers the time.
        assert plain == replace(longer, head=head, entry_ids=plain.entry_ids), seed
        assert plain.head.incarnation != longer.head.incarnation
    mine, theirs = await stored_rows(superuser, session), await stored_rows(superuser, twin)
    for entries, _, (transcript,) in (mine, theirs):
        assert check_chain_of(entries[1:], previous=b"x") == transcript[1]
    assert _without_hashes(mine) == _without_hashes(theirs), seed
    assert len(mine[0]) == len(mine[1]) + 1


def _without_hashes(rows: list[list[Any]]) -> list[Any]:
    """Return the rows without the header, ids, times, and the hashes that cover them."""
    entries, keys, (transcript,) = rows
    return [
        [(row[0], *row[3:15], *row[16:19]) for row in entries[1:]],
        keys,
        (transcript[0], *transcript[3:]),
    ]
