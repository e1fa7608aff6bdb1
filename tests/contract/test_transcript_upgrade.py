"""Appends of replicas of the version before, which hand bodies over as an array, beside those of this one; and what no entry may be."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript import store
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry, WriterClaim
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store import Append, Key

from tests.contract.transcript_fixtures import Service, Session, service, session, user

__all__ = ["service", "session"]

# The statement as the version before sends it.
_BEFORE = """
select appended.*
from jsonb_to_recordset(%(calls)s) as call (
    session_id text, idempotency_key text, content_hash text, run_id text, epoch bigint, service text, client text, entries jsonb,
    first_body integer, last_body integer, settings_version bigint, target_ids text[]
)
cross join lateral append_entries(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), call.session_id, call.idempotency_key, decode(call.content_hash, 'hex'), call.run_id,
    call.epoch, call.service, call.client, call.entries, (%(bodies)s::bytea[])[call.first_body:call.last_body], call.settings_version,
    call.target_ids, %(waits)s
) as appended
"""


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    """As the service's own role."""
    async with open_database(service.dsn.app, name="upgrade", max_connections=2) as database:
        yield database


async def append_as_before(
    database: Database, session: Session, claim: WriterClaim, key: str, body: bytes
) -> dict[str, Any]:
    entry = {
        "entry_id": new_id(IdKind.ENTRY),
        "parent_entry_id": "",
        "kind": "MESSAGE",
        "role": "USER",
        "token_count": 1,
        "token_vocabulary": "o200k_base",
        "calls": [],
        "answers": "",
        "is_synthetic": False,
        "label": "",
        "target_entry_id": "",
    }
    call = {
        "session_id": session.session_id,
        "idempotency_key": key,
        "content_hash": b"hash".hex(),
        "run_id": claim.run_id,
        "epoch": claim.epoch,
        "service": "",
        "client": "",
        "entries": [entry],
        "first_body": 1,
        "last_body": 1,
        "settings_version": 0,
        "target_ids": None,
    }
    parameters = {"calls": Jsonb([call]), "bodies": [body], "waits": False}
    (row,) = await database.call(session.tenant_id, _BEFORE, parameters)
    return row


async def test_replicas_of_the_version_before_and_this_one_append_in_turns(
    session: Session, database: Database
) -> None:
    claim = await session.acquire(1)
    body = user("as before").SerializeToString()
    key = secrets.token_hex(8)

    first = await append_as_before(database, session, WriterClaim(claim.run_id, 1), key, body)
    assert (first["outcome"], first["seq"]) == ("APPENDED", 2)
    second = await session.append([user("as now")], claim=claim)
    assert [entry.seq for entry in second.entries] == [3]
    third = await append_as_before(database, session, WriterClaim(claim.run_id, 1), secrets.token_hex(8), body)
    assert (third["outcome"], third["seq"]) == ("APPENDED", 4)

    entries = await session.entries()
    assert [entry.seq for entry in entries] == [1, 2, 3, 4]
    assert [entry.body.message.content[0].text.text for entry in entries[1:]] == ["as before", "as now", "as before"]
    assert [entry.parent_entry_id for entry in entries[1:]] == [entry.entry_id for entry in entries[:-1]]
    # What one made, the other knows by its key.
    again = Append(
        Key(session.tenant_id, session.session_id),
        (NewEntry(EntryKind.MESSAGE, body),),
        key,
        b"hash",
        Writer(claim=WriterClaim(claim.run_id, 1)),
        0,
    )
    (replayed,) = await store.append_entries(database, session.tenant_id, [again], waits=True)
    assert (replayed.outcome, replayed.first_seq, replayed.entry_ids) == ("REPLAYED", 2, (entries[1].entry_id,))


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "NOBODY"}, {"role": "NOBODY"}, {"label": "NOBODY", "target_entry_id": "ent_x"}],
    ids=["kind", "role", "label"],
)
async def test_no_entry_of_what_is_not_known_is_stored(
    session: Session, database: Database, wrong: dict[str, Any]
) -> None:
    entry = replace(NewEntry(EntryKind.CUSTOM, b"x"), **wrong)
    append = Append(
        Key(session.tenant_id, session.session_id), (entry,), secrets.token_hex(8), b"x", Writer(service="session"), 0
    )
    if "label" in wrong:  # What a label marks is looked for first.
        header = (await session.entries())[0]
        append = replace(append, entries=(replace(entry, target_entry_id=header.entry_id),))
    with pytest.raises(psycopg.errors.CheckViolation, match="NOBODY"):
        await store.append_entries(database, session.tenant_id, [append], waits=True)
    assert len(await session.entries()) == 1


async def test_bodies_shorter_than_their_sizes_are_not_stored(session: Session, database: Database) -> None:
    entry = NewEntry(EntryKind.LABEL, b"long", label=Label.FINAL, target_entry_id=(await session.entries())[0].entry_id)
    call = store.call_parameters(
        Append(Key(session.tenant_id, session.session_id), (entry,), "key", b"x", Writer(service="session"), 0), 1
    )
    statement = "select * from append_together(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)s, true)"
    with pytest.raises(psycopg.errors.CheckViolation, match="fewer bytes"):
        await database.call(session.tenant_id, statement, {"calls": Jsonb([call]), "bodies": b"lon"})
    assert len(await session.entries()) == 1
