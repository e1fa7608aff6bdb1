"""Callers read and write only what belongs to their tenant or run."""

from typing import LiteralString

import pytest
from psycopg import AsyncConnection, errors
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.activity_service_pb2 import Activity
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.activity_recorder import open_activity_recorder

from tests.support.transcript.bodies import user
from tests.support.transcript.drafts import write_draft
from tests.support.transcript.files import HEADER, file_of, message, send
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.searching import search

_TABLES = (
    "transcripts",
    "entries",
    "appends",
    "draft_pieces",
    "tenants",
    "search_progress",
    "search_pieces",
    "imports",
    "activities",
    "activity_heads",
)


def _elsewhere(owner: Session) -> Session:
    """Return the same session id in another tenant."""
    return Session(owner.service, f"{owner.tenant_id}-x", owner.session_id)


async def test_another_tenants_session_is_not_found(session: Session) -> None:
    stranger = _elsewhere(session)
    claim = pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=100)
    with refused(Reason.NOT_FOUND):
        await stranger.page()
    with refused(Reason.NOT_FOUND):
        await stranger.context()
    with refused(Reason.NOT_FOUND):
        await stranger.append([user("hi")])
    with refused(Reason.NOT_FOUND):
        await stranger.acquire_claim(claim)
    with refused(Reason.NOT_FOUND):
        await stranger.sibling().create(fork_of=stranger)
    await stranger.delete()
    assert (await session.page()).head.seq == 1


async def test_tenants_with_the_same_session_id_are_separate(session: Session) -> None:
    stranger = _elsewhere(session)
    await stranger.create()
    await stranger.append([user("theirs")], key="k")
    assert not (await session.append([user("ours")], key="k")).replayed
    assert [entry.body for entry in await session.entries(after_seq=1)] == [user("ours")]


async def test_a_run_reads_only_its_own_session(session: Session) -> None:
    other = session.sibling()
    await other.create()
    claim = await session.acquire(1)
    token = session.run_token(claim)
    assert (await session.page(token=token)).head.seq == 1
    await session.context(token=token)
    with refused(Reason.NOT_FOUND):
        await other.page(token=token)
    with refused(Reason.NOT_FOUND):
        await other.context(token=token)
    with refused(Reason.NOT_FOUND):
        await other.append([user("hi")], claim=claim, token=token)
    with refused(Reason.NOT_FOUND):
        await other.acquire_claim(claim, token=token)


@pytest.mark.parametrize("table", _TABLES)
async def test_a_statement_without_a_where_clause_affects_no_other_tenant(
    session: Session, table: str
) -> None:
    await _in_every_table(session)
    stranger = _elsewhere(session)
    await stranger.create()
    await _in_every_table(stranger)
    async with open_database(session.service.dsn.app, name="isolation", max_connections=1) as database:
        async with database.transaction(stranger.tenant_id) as connection:
            rows = await (await connection.execute(f"select distinct tenant_id from {table}")).fetchall()
            assert rows == [{"tenant_id": stranger.tenant_id}]
            await connection.execute(f"delete from {table}")
        async with database.transaction(session.tenant_id) as connection:
            assert await (await connection.execute(f"select from {table}")).fetchall()


async def test_a_row_for_another_tenant_cannot_be_written(session: Session) -> None:
    forged = "insert into appends values (%s, 's', 'k', ''::bytea, 1, 1, '', 0)"
    async with open_database(session.service.dsn.app, name="isolation", max_connections=1) as database:
        with pytest.raises(errors.InsufficientPrivilege):
            await _execute(database, session.tenant_id, forged, (f"{session.tenant_id}-x",))
        await _execute(database, session.tenant_id, forged, (session.tenant_id,))


async def _execute(
    database: Database, tenant_id: str, statement: LiteralString, parameters: tuple[str, ...]
) -> None:
    async with database.transaction(tenant_id) as connection:
        await connection.execute(statement, parameters)


async def _in_every_table(session: Session) -> None:
    await session.append([user("a word")])
    await write_draft(session, await session.acquire(1), "a draft")
    await session.prepare_tenant(1, mask_secrets=True)
    assert (await search(session, words="word")).hits
    await send(session.sibling(), file_of(HEADER, message(1)))
    async with (
        open_database(session.service.dsn.app, name="isolation", max_connections=1) as database,
        open_activity_recorder(database) as activities,
    ):
        await activities.record(Key(session.tenant_id, session.session_id), Activity())


@pytest.mark.parametrize("table", _TABLES)
async def test_without_a_tenant_no_row_is_visible(session: Session, table: str) -> None:
    await _in_every_table(session)
    async with await AsyncConnection.connect(session.service.dsn.app, autocommit=True) as connection:
        assert await (await connection.execute(f"select from {table}")).fetchall() == []
