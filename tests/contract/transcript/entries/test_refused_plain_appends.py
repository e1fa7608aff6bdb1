"""A plain append that a rule refuses leaves every row untouched, and gets the reason."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database
from spawnmesh_transcript.domain.appends import Append
from spawnmesh_transcript.domain.entries import WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations.append_queue import open_append_queue
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store.appends import append_batch

from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import Session
from tests.support.transcript.plain_appends import new_append
from tests.support.transcript.stored_rows import check_totals, stored_rows
from tests.support.transcript.tables import Superuser

Break = Callable[[Session, Append, Superuser], Awaitable[Append]]


async def _used_key(session: Session, append: Append, superuser: Superuser) -> Append:
    by = append.writer.claim
    assert by is not None
    claim = pb.WriterClaim(run_id=by.run_id, epoch=by.epoch)
    done = await session.append([assistant("word")], claim=claim, key=append.request_id)
    statement = "select content_hash from appends where tenant_id = %s and first_seq = %s"
    row = await (await superuser.execute(statement, (session.tenant_id, done.entries[0].seq))).fetchone()
    assert row is not None
    return replace(append, content_hash=row[0])


async def _other_content(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(await _used_key(session, append, superuser), content_hash=b"other")


async def _epoch(session: Session, append: Append, superuser: Superuser) -> Append:
    claim = append.writer.claim
    assert claim is not None
    return replace(append, writer=Writer(claim=WriterClaim(claim.run_id, claim.epoch + 1)))


async def _run(session: Session, append: Append, superuser: Superuser) -> Append:
    claim = append.writer.claim
    assert claim is not None
    return replace(append, writer=Writer(claim=WriterClaim(new_id(IdKind.RUN), claim.epoch)))


async def _settings(session: Session, append: Append, superuser: Superuser) -> Append:
    await session.prepare_tenant(4, mask_secrets=True)
    return append


async def _no_settings(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(append, settings_version=4)


async def _deleted(session: Session, append: Append, superuser: Superuser) -> Append:
    await session.delete()
    return replace(append, writer=Writer(service="session"))


async def _nowhere(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(append, key=Key(session.tenant_id, new_id(IdKind.SESSION)))


async def _purging(session: Session, append: Append, superuser: Superuser) -> Append:
    await superuser.execute("insert into purged_tenants values (%s, 0)", (session.tenant_id,))
    return append


async def _others(session: Session, append: Append, superuser: Superuser) -> Append:
    stranger = session.service.session()
    await stranger.create()
    return replace(append, key=Key(session.tenant_id, stranger.session_id), writer=Writer(service="session"))


_REFUSED: dict[str, tuple[Break, str, str]] = {
    "a key that was used": (_used_key, "BUSY", "REPLAYED"),
    "a key that was used for something else": (_other_content, "BUSY", "KEY_REUSED"),
    "an epoch that was never given": (_epoch, "CLAIM_LOST", "CLAIM_LOST"),
    "another run": (_run, "CLAIM_LOST", "CLAIM_LOST"),
    "settings that changed": (_settings, "SETTINGS_CHANGED", "SETTINGS_CHANGED"),
    "settings that there are none of": (_no_settings, "SETTINGS_CHANGED", "SETTINGS_CHANGED"),
    "a transcript that was deleted": (_deleted, "BUSY", "NOT_FOUND"),
    "a transcript that never was": (_nowhere, "BUSY", "NOT_FOUND"),
    "a tenant that is being purged": (_purging, "NOT_FOUND", "NOT_FOUND"),
    "a transcript of another tenant": (_others, "BUSY", "NOT_FOUND"),
}


@pytest.mark.parametrize("name", _REFUSED)
async def test_a_refused_append_writes_nothing_and_gets_the_reason(
    session: Session, database: Database, superuser: Superuser, name: str
) -> None:
    """In its own statement, or in the next one if that has to read more."""
    broken, first_answer, answer = _REFUSED[name]
    append = new_append(session, await session.acquire(1))
    append = await broken(session, append, superuser)
    before = await stored_rows(superuser, session)
    (outcome,) = await append_batch(database, session.tenant_id, [append])
    assert outcome.outcome == first_answer
    async with open_append_queue(database, slots=1) as queue:
        assert (await queue.append(append)).outcome == answer
    assert (await append_store.append_waiting(database, append)).outcome == answer
    assert await stored_rows(superuser, session) == before


async def test_current_settings_do_not_refuse(session: Session, database: Database) -> None:
    await session.prepare_tenant(4, mask_secrets=True)
    append = replace(new_append(session, await session.acquire(1)), settings_version=4)
    (outcome,) = await append_batch(database, session.tenant_id, [append])
    assert (outcome.outcome, outcome.first_seq) == ("APPENDED", 2)


@pytest.mark.parametrize("wrong", [{"kind": "NOBODY"}, {"role": "NOBODY"}], ids=["kind", "role"])
async def test_no_plain_entry_of_an_unknown_kind_is_stored(
    session: Session, database: Database, superuser: Superuser, wrong: dict[str, Any]
) -> None:
    append = new_append(session, await session.acquire(1))
    append = replace(append, entries=(replace(append.entries[0], **wrong),))
    async with open_append_queue(database, slots=1) as queue:
        with pytest.raises(psycopg.errors.CheckViolation, match=r"entry_(kind|role)"):
            await queue.append(append)
    assert await check_totals(superuser, session) == 1


class _Cut(bytes):
    """A body that claims to be longer than it is."""

    def __len__(self) -> int:
        return super().__len__() + 1


async def test_no_body_shorter_than_its_size_is_stored(
    session: Session, database: Database, superuser: Superuser
) -> None:
    append = new_append(session, await session.acquire(1), body=_Cut(b"lon"))
    with pytest.raises(ValueError, match="sizes"):
        await append_batch(database, session.tenant_id, [append])
    assert await check_totals(superuser, session) == 1
