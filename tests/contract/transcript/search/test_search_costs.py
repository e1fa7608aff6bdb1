"""A search has bounded costs, and other calls do not wait for searches."""

import asyncio
import random
from typing import Any

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.operations.search import find_entries as searching

from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.searching import search, seqs

COSTLY = "a[ab]{60}c"
"""Takes about 0.3 s for a million letters without a match: the most expensive kind that is run."""


async def _costly(session: Session) -> Session:
    """Return a session of another tenant, with texts for which COSTLY takes seconds in total."""
    costly = session.service.session()
    await costly.create()
    text = "".join(random.Random(1).choices("ab", k=800_000))
    for _ in range(8):
        await costly.append([user(text)])
    return costly


async def test_SearchEntries__a_pattern_of_too_many_steps_is_refused(session: Session) -> None:
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern="(?:a?){1000}" * 50 + "c")
    assert (facts["why"], facts["step_limit"]) == ("COST", "5000")
    assert int(facts["step_count"]) > 50_000


async def test_SearchEntries__a_pattern_is_refused_if_a_text_is_too_long_for_it(session: Session) -> None:
    await session.append([user("ab" * 400_000)])
    await session.append([user("ab" * 1_000 + "c")])
    pattern = "a[ab]{901}c"
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern=pattern)
    assert (facts["why"], facts["text_bytes"]) == ("COST", "800000")
    assert int(facts["text_byte_limit"]) < 800_000
    assert await seqs(session, pattern=pattern, after_seq=2) == [3]


async def test_SearchEntries__usual_patterns_run_over_the_longest_texts(session: Session) -> None:
    await session.append([user("words and words " * (12 * 1024 * 1024 // 16))])
    patterns = (
        "E[0-9]{4}",
        r"\b\w+@\w+\.com\b",
        "(?i)error.*timeout",
        r"https?://[^\s\"']+",
        r"\d{4}-\d{2}-\d{2}T\d{2}",
    )
    found = {pattern: await seqs(session, pattern=pattern) for pattern in patterns}
    assert found == {pattern: [] for pattern in patterns}


async def test_SearchEntries__a_pattern_has_a_time_limit(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_PATTERN_SECONDS", 0.0)
    await session.append([user("word")])
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern="w.rd")
    assert facts["why"] == "TIME"


async def test_SearchEntries__a_tenant_uses_one_thread_however_much_it_searches(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_PATTERN_SECONDS", 60.0)
    costly = await _costly(session)
    await session.append([user("word")])
    many = [asyncio.create_task(search(costly, pattern=COSTLY)) for _ in range(5)]
    for _ in range(5):  # The first search may run before the costly ones begin.
        assert await seqs(session, pattern="w.rd") == [2]
    assert not any(task.done() for task in many), "the search waited for a search of the other tenant"
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)


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


async def test_SearchEntries__a_long_entry_is_indexed_behind_calls_that_are_cut_off(
    session: Session,
) -> None:
    await session.append([user("a b c d e f g h i j " * 100_000)])  # It takes half a second or more.
    cut_off = 0
    async with asyncio.timeout(60):
        while (found := await _seqs_in_time(session, words='"j a"', seconds=0.1)) is None:
            cut_off += 1
    assert found == [2]
    assert cut_off > 0


async def test_SearchEntries__says_how_far_the_first_search_has_indexed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.append([user("word")] * 3)
    with monkeypatch.context() as patched:
        patched.setattr(searching, "_INDEX_SECONDS", 0.0)
        with refused(Reason.DEPENDENCY_UNAVAILABLE) as facts:
            await search(session, words="word")
    assert facts == {"dependency": "search index", "indexed_seq": "0", "head_seq": "4"}
    assert await seqs(session, words="word") == [4, 3, 2]


async def _seqs_in_time(session: Session, **asked: Any) -> list[int] | None:
    try:
        return await seqs(session, **asked)
    except MeshError as error:
        if error.reason not in (Reason.DEADLINE_EXCEEDED, Reason.DEPENDENCY_UNAVAILABLE):
            raise
        return None
