"""What a search costs has a bound, and nobody but searches pays for it."""

import asyncio
import random
from typing import Any

import pytest
from spawnmesh.transcript.v1 import search_service_pb2 as pb
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_transcript import searching

from tests.contract.transcript_fixtures import Session, refused, service, session, user

__all__ = ["service", "session"]

COSTLY = "a[ab]{60}c"
"""Some 0.3 s for a million letters, without a match: the worst kind that is run."""


async def search(session: Session, *, seconds: float = 30, **asked: Any) -> pb.SearchEntriesResponse:
    request = pb.SearchEntriesRequest(session_id=session.session_id, **asked)
    peer = session.service.peer
    with acting_with_token(session.client_token()):
        return await peer.unary(SearchServiceStub(peer.channel).SearchEntries, request, timeout_seconds=seconds)


async def seqs(session: Session, **asked: Any) -> list[int]:
    return [hit.seq for hit in (await search(session, **asked)).hits]


async def _costly(session: Session) -> Session:
    """Of another tenant, with texts that COSTLY takes seconds for in all."""
    costly = session.service.session()
    await costly.create()
    text = "".join(random.Random(1).choices("ab", k=800_000))
    for _ in range(16):
        await costly.append([user(text)])
    return costly


async def test_SearchEntries__a_pattern_of_too_many_steps_is_refused(session: Session) -> None:
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern="(?:a?){1000}" * 50 + "c")
    assert (facts["why"], facts["step_limit"]) == ("COST", "5000")
    assert int(facts["step_count"]) > 50_000


async def test_SearchEntries__a_pattern_is_refused_where_a_text_is_too_long_for_it(session: Session) -> None:
    await session.append([user("ab" * 400_000)])
    await session.append([user("ab" * 1_000 + "c")])
    pattern = "a[ab]{901}c"
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern=pattern)
    assert (facts["why"], facts["text_bytes"]) == ("COST", "800000")
    assert int(facts["text_byte_limit"]) < 800_000
    assert await seqs(session, pattern=pattern, after_seq=2) == [3]


@pytest.mark.parametrize(
    "pattern",
    ["E[0-9]{4}", r"\b\w+@\w+\.com\b", "(?i)error.*timeout", r"https?://[^\s\"']+", r"\d{4}-\d{2}-\d{2}T\d{2}"],
)
async def test_SearchEntries__patterns_that_people_write_are_run_over_the_longest_texts(
    session: Session, pattern: str
) -> None:
    await session.append([user("words and words " * (12 * 1024 * 1024 // 16))])
    assert await seqs(session, pattern=pattern) == []


async def test_SearchEntries__a_pattern_has_an_end_of_its_time(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_PATTERN_SECONDS", 0.0)
    await session.append([user("word")])
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern="w.rd")
    assert facts["why"] == "TIME"


async def test_SearchEntries__searches_that_nobody_waits_for_leave_their_threads(session: Session) -> None:
    others = [await _costly(session) for _ in range(2)]
    await session.append([user("word")])
    cut_off = [search(other, pattern=COSTLY, seconds=0.5) for other in others]
    for error in await asyncio.gather(*cut_off, return_exceptions=True):
        assert isinstance(error, MeshError)
        assert error.reason is Reason.DEADLINE_EXCEEDED
    assert await seqs(session, pattern="w.rd", seconds=1.5) == [2]


async def test_SearchEntries__a_tenant_takes_one_thread_however_much_it_searches(session: Session) -> None:
    other = await _costly(session)
    await session.append([user("word")])
    many = asyncio.gather(*(search(other, pattern=COSTLY, seconds=3) for _ in range(5)), return_exceptions=True)
    await asyncio.sleep(0.5)
    assert await seqs(session, pattern="w.rd", seconds=1.5) == [2]
    await many


async def test_SearchEntries__a_page_of_hits_by_words_ends_early_by_bytes(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "WORDS_MAX_BYTES", 5_000)
    for length in (2_000, 2_000, 2_000, 9_000, 100, 100):
        await session.append([user("word " + "x" * length)])
    child = session.sibling()
    await child.create(child_of=session)
    await child.append([user("word")])
    pages: list[list[int]] = []
    token = ""
    while token or not pages:
        page = await search(session, words="word", page_size=200, with_descendants=True, page_token=token)
        pages.append([hit.seq for hit in page.hits])
        token = page.next_page_token
    assert pages == [[7, 6], [5], [4, 3], [2, 2]]


async def test_SearchEntries__a_long_entry_is_read_behind_the_calls_that_are_cut_off(session: Session) -> None:
    await session.append([user("a b c d e f g h i j " * 200_000)])  # A second or more.
    cut_off = 0
    async with asyncio.timeout(60):
        while (found := await _seqs_in_time(session, words='"j a"', seconds=0.3)) is None:
            cut_off += 1
    assert found == [2]
    assert cut_off > 0


async def _seqs_in_time(session: Session, **asked: Any) -> list[int] | None:
    try:
        return await seqs(session, **asked)
    except MeshError as error:
        if error.reason not in (Reason.DEADLINE_EXCEEDED, Reason.DEPENDENCY_UNAVAILABLE):
            raise
        return None
