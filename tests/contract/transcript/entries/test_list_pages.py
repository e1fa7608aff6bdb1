"""Every list of the transcript service comes in pages."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from spawnmesh.transcript.v1 import compaction_service_pb2 as compaction_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import search_service_pb2 as search_pb
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.store.transcripts import MAX_SCANNED_TRANSCRIPTS

from tests.support.list_pages import PagedList, check_page_sizes, check_page_tokens, check_pages
from tests.support.transcript.bodies import user
from tests.support.transcript.compaction import Compacting
from tests.support.transcript.fixtures import Session
from tests.support.transcript.tables import Superuser

STUBS = {
    "ListEntries": TranscriptServiceStub,
    "ExpandSummary": CompactionServiceStub,
    "ListTranscripts": StorageServiceStub,
    "SearchEntries": SearchServiceStub,
}


async def call(session: Session, rpc: str, request: Any, *, token: str = "") -> Any:
    peer = session.service.peer
    method = getattr(STUBS[rpc](peer.channel), rpc)
    with use_token(token or session.client_token()):
        return await peer.unary(method, request, timeout_seconds=60)


def _entries(session: Session, **fields: Any) -> pb.ListEntriesRequest:
    return pb.ListEntriesRequest(session_id=session.session_id, **fields)


async def _stranger(session: Session) -> Session:
    """Return a session of another tenant, with entries and a second transcript."""
    stranger = session.service.session()
    for one in (stranger, stranger.sibling()):
        await one.create()
        await one.append([user("one"), user("two")])
    return stranger


async def _upwards(compacting: Compacting) -> PagedList:
    session = compacting.session
    await session.append([user(f"message {number}") for number in range(4)])
    stranger, claim = await _stranger(session), await session.acquire(1)
    listing = partial(call, session, "ListEntries")
    as_run = partial(call, session, "ListEntries", token=session.run_token(claim))
    messages = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_MESSAGE])
    return PagedList(
        listing,
        _entries(session),
        "entries",
        [
            (partial(call, stranger, "ListEntries"), _entries(stranger)),
            (as_run, _entries(session)),
            (listing, _entries(session, after_seq=1)),
            (listing, _entries(session, before_seq=0)),
            (listing, _entries(session, filter=messages)),
        ],
        add=lambda: session.append([user("another")]),
    )


async def _downwards(compacting: Compacting) -> PagedList:
    session = compacting.session
    listed = await _upwards(compacting)
    others = [(listed.call, _entries(session)), (listed.call, _entries(session, before_seq=4))]
    return PagedList(
        listed.call,
        _entries(session, before_seq=0),
        "entries",
        others,
        listed.add,
        grows=False,
        is_downwards=True,
    )


async def _sources(compacting: Compacting) -> PagedList:
    session = compacting.session
    claim = await session.acquire(1)
    requests = []
    for number in range(2):
        await compacting.converse(claim, turns=4, name=f"part-{number}")
        summary = (await compacting.compact(claim)).summary
        requests.append(
            compaction_pb.ExpandSummaryRequest(session_id=session.session_id, entry_id=summary.entry_id)
        )
    expanding = partial(call, session, "ExpandSummary")
    as_run = partial(call, session, "ExpandSummary", token=session.run_token(claim))
    return PagedList(
        expanding,
        requests[1],
        "entries",
        [
            (expanding, requests[0]),
            (as_run, requests[1]),
            (partial(call, session, "ListEntries"), _entries(session)),
        ],
        add=lambda: session.append([user("later, and no source")], claim=claim),
        grows=False,
    )


async def _transcripts(compacting: Compacting) -> PagedList:
    session = compacting.session
    stranger = await _stranger(session)
    for _ in range(3):
        await session.sibling().create()
    await session.append([user("one")])
    return PagedList(
        partial(call, session, "ListTranscripts"),
        storage_pb.ListTranscriptsRequest(),
        "transcripts",
        [
            (partial(call, stranger, "ListTranscripts"), storage_pb.ListTranscriptsRequest()),
            (partial(call, session, "ListEntries"), _entries(session)),
        ],
        add=lambda: session.sibling().create(),
    )


async def _hits(compacting: Compacting) -> PagedList:
    session = compacting.session
    await session.append([user(f"word {number}") for number in range(4)])

    def words(**fields: Any) -> search_pb.SearchEntriesRequest:
        return search_pb.SearchEntriesRequest(session_id=session.session_id, words="word", **fields)

    searching = partial(call, session, "SearchEntries")
    return PagedList(
        searching,
        words(),
        "hits",
        [
            (searching, words(after_seq=2)),
            (searching, words(with_descendants=True)),
            (partial(call, session, "ListEntries"), _entries(session)),
        ],
    )


LISTS = {
    "ListEntries upwards": _upwards,
    "ListEntries downwards": _downwards,
    "ExpandSummary": _sources,
    "ListTranscripts": _transcripts,
    "SearchEntries": _hits,
}


@pytest.fixture(params=LISTS)
async def listed(compacting: Compacting, request: pytest.FixtureRequest) -> PagedList:
    return await LISTS[request.param](compacting)


@pytest.mark.parametrize("check", [check_pages, check_page_sizes, check_page_tokens])
async def test_list_comes_in_pages(listed: PagedList, check: Callable[[PagedList], Awaitable[None]]) -> None:
    await check(listed)


# Deleted transcripts with ids before all others.
_DELETE_MANY = """
insert into transcripts (tenant_id, session_id, state, incarnation, forked_from_session_id)
select %(tenant_id)s, 'ses_0000000000' || lpad(n::text, 16, '0'), 'DELETED', '', ''
from generate_series(1, %(count)s) n
"""


async def test_ListTranscripts__pages_behind_many_deleted_transcripts(
    session: Session, superuser: Superuser
) -> None:
    count = MAX_SCANNED_TRANSCRIPTS + 1
    await superuser.execute(_DELETE_MANY, {"tenant_id": session.tenant_id, "count": count})
    first = await call(session, "ListTranscripts", storage_pb.ListTranscriptsRequest())
    assert (list(first.transcripts), bool(first.next_page_token)) == ([], True)
    request = storage_pb.ListTranscriptsRequest(page_token=first.next_page_token)
    rest = await call(session, "ListTranscripts", request)
    assert [one.session_id for one in rest.transcripts] == [session.session_id]
    assert rest.next_page_token == ""
