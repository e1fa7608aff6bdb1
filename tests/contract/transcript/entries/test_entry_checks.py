"""Checks that the functions which write entries make in place of the tables."""

import secrets
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Database
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store.appends import Append

from tests.support.transcript.fixtures import Session


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "UNKNOWN"}, {"role": "UNKNOWN"}, {"label": "UNKNOWN", "target_entry_id": "ent_x"}],
    ids=["kind", "role", "label"],
)
async def test_an_unknown_kind_role_or_label_violates_a_check(
    session: Session, database: Database, wrong: dict[str, Any]
) -> None:
    entry = replace(NewEntry(EntryKind.CUSTOM, b"x"), **wrong)
    append = Append(
        Key(session.tenant_id, session.session_id),
        (entry,),
        secrets.token_hex(8),
        b"x",
        Writer(service="session"),
        0,
    )
    if "label" in wrong:  # The target is looked up before the label is checked.
        header = (await session.entries())[0]
        append = replace(append, entries=(replace(entry, target_entry_id=header.entry_id),))
    with pytest.raises(psycopg.errors.CheckViolation, match="UNKNOWN"):
        await append_store.append_entries(database, session.tenant_id, [append], waits=True)
    assert len(await session.entries()) == 1


async def test_bodies_shorter_than_their_sizes_violate_a_check(session: Session, database: Database) -> None:
    entry = NewEntry(
        EntryKind.LABEL, b"long", label=Label.FINAL, target_entry_id=(await session.entries())[0].entry_id
    )
    call = append_store.call_parameters(
        Append(
            Key(session.tenant_id, session.session_id), (entry,), "key", b"x", Writer(service="session"), 0
        ),
        1,
    )
    statement = (
        "select * from append_entries("
        "set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)s, true)"
    )
    with pytest.raises(psycopg.errors.CheckViolation, match="fewer bytes"):
        await database.call(session.tenant_id, statement, {"calls": Jsonb([call]), "bodies": b"lon"})
    assert len(await session.entries()) == 1
