"""Checks of the kind, role and label of entries, which domains make."""

import secrets
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from spawnmesh_postgres.database import Database
from spawnmesh_transcript.domain.appends import Append
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store import appends as append_store

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
    with pytest.raises(psycopg.errors.CheckViolation, match=r"entry_(kind|role|label)"):
        await append_store.append_waiting(database, append)
    assert len(await session.entries()) == 1
