"""A page of entries has a bounded cost, whatever its filter leaves out."""

from contextlib import aclosing

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_postgres.database import Connection, open_database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.domain.entries import EntryFilter, EntryKind, PagePosition
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.entry_pages import MAX_SCANNED_ENTRIES
from spawnmesh_transcript.store import entries

from tests.support.transcript.bodies import note, user
from tests.support.transcript.fixtures import Session
from tests.support.transcript.rows_read import rows_read
from tests.support.transcript.tables import Superuser

HEAD = 2 * MAX_SCANNED_ENTRIES + 200
NOTES = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_NOTE])
ANSWERS = entry_pb2.EntryFilter(roles=[content_pb.ROLE_ASSISTANT])
FEW = HEAD // MAX_SCANNED_ENTRIES + 1

# Copies of the newest entry up to the seq of the head.
_COPY = """
insert into entries (tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count,
    calls, answers, is_synthetic, label, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body)
select tenant_id, session_id, n, 'ent_' || md5(session_id || n), entry_id, kind, role, token_count,
    calls, answers, is_synthetic, label, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body
from entries, generate_series(seq + 1, %(head)s) n
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = 3
"""


@pytest.fixture
async def long(session: Session, superuser: Superuser) -> Session:
    """A transcript with a note at its beginning and many messages."""
    await session.append([note("the note"), user("the message")])
    key = {"tenant_id": session.tenant_id, "session_id": session.session_id, "head": HEAD}
    await superuser.execute(_COPY, key)
    await superuser.execute(
        "update transcripts set seq = %(head)s"
        " where tenant_id = %(tenant_id)s and session_id = %(session_id)s",
        key,
    )
    return session


async def pages_of(
    session: Session, wanted: entry_pb2.EntryFilter, *, downwards: bool, page_size: int = 0
) -> list[list[int]]:
    """Return the seqs of every page."""
    request = pb.ListEntriesRequest(session_id=session.session_id, filter=wanted, page_size=page_size)
    if downwards:
        request.before_seq = 0
    pages: list[list[int]] = []
    with use_token(session.client_token()):
        while True:
            page = await session.service.peer.unary(
                session.service.stub.ListEntries, request, timeout_seconds=60
            )
            pages.append([entry.seq for entry in page.entries])
            if not page.next_page_token:
                return pages
            request.page_token = page.next_page_token


async def test_ListEntries__pages_behind_many_entries_of_other_kinds(long: Session) -> None:
    assert await pages_of(long, NOTES, downwards=False) == [[2], *[[]] * (FEW - 1)]
    assert await pages_of(long, NOTES, downwards=True) == [*[[]] * (FEW - 1), [2]]
    for downwards in (False, True):
        assert await pages_of(long, ANSWERS, downwards=downwards) == [[]] * FEW
        everything = await pages_of(long, entry_pb2.EntryFilter(), downwards=downwards, page_size=1000)
        found = [seq for page in (everything[::-1] if downwards else everything) for seq in page]
        assert found == list(range(1, HEAD + 1))


async def test_FollowEntries__finds_an_entry_behind_many_of_other_kinds(long: Session) -> None:
    request = pb.FollowEntriesRequest(session_id=long.session_id, after_seq=2, filter=NOTES)
    with use_token(long.client_token()):
        answers = long.service.peer.stream(long.service.stub.FollowEntries, request, timeout_seconds=60)
        async with aclosing(answers):
            first = await anext(answers)
            assert (list(first.entries), first.read_seq) == ([], 2 + MAX_SCANNED_ENTRIES)
            await long.append([note("another")])
            news = await anext(answers)
    assert ([entry.seq for entry in news.entries], news.read_seq) == ([HEAD + 1], HEAD + 1)


@pytest.mark.parametrize("position", [PagePosition(0), PagePosition(2**63 - 1, is_backwards=True)])
async def test_a_page_reads_a_bounded_number_of_entries(long: Session, position: PagePosition) -> None:
    key = Key(long.tenant_id, long.session_id)
    wanted = EntryFilter(kinds=frozenset({EntryKind.COMPACTION}))
    end_seq = position.end_seq(HEAD, MAX_SCANNED_ENTRIES)

    async def page(connection: Connection, key: Key) -> None:
        found = await entries.list_entries(
            connection, key, position, wanted, end_seq=end_seq, page_size=100, max_bytes=2**20
        )
        assert found == ([], False)

    async with open_database(long.service.dsn.app, name="pages", max_connections=1) as database:
        assert 0 < await rows_read(database, key, page) <= MAX_SCANNED_ENTRIES
