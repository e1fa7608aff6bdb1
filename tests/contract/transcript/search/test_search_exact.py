"""A hit by words matches the text itself: the index alone cannot decide, so the text is checked."""

import unicodedata
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Session
from tests.support.transcript.searching import search, seqs

WORDS = [f"w{number}" for number in range(6_000)]


@pytest.mark.parametrize(
    ("text", "other"),
    [("दान", "दिन"), ("দিন", "দান"), ("กีน", "กิน"), ("สีแดง", "สิแดง"), ("நீ", "நா"), ("ទី", "ទា"), ("दन", "दिन")],
)
async def test_SearchEntries__vowel_signs_distinguish_words(session: Session, text: str, other: str) -> None:
    await session.append([user(text), user(f"a {other} b")])
    assert await seqs(session, words=text) == [2]
    assert await seqs(session, words=other) == [3]
    assert await seqs(session, words=f'"a {other}"') == [3]
    assert await seqs(session, words=f"b -{other}") == []
    assert await seqs(session, words=f"b -{text}") == [3]


@pytest.mark.parametrize("word", ["한글", "각", "ガイド", "ブック", "が", "résumé"])
async def test_SearchEntries__composed_and_decomposed_letters_are_equal(session: Session, word: str) -> None:
    narrow = {"ガイド": "ｶﾞｲﾄﾞ", "ブック": "ﾌﾞｯｸ"}
    spellings = [word, unicodedata.normalize("NFD", word), narrow.get(word, word)]
    await session.append(
        [user(f"a {spelling}.txt b") for spelling in spellings] + [user("b か ク 가 resume")]
    )
    for asked in spellings:
        assert await seqs(session, words=asked) == [4, 3, 2]
        assert await seqs(session, words=f'"a {asked}"') == [4, 3, 2]
        assert await seqs(session, words=f"b -{asked}") == [5]


async def test_SearchEntries__a_page_is_full_although_many_entries_match_only_in_the_index(
    session: Session,
) -> None:
    for number in range(60):
        await session.append([user("दिन" if number % 10 == 0 else "दान")])
    first = await search(session, words="दिन", page_size=4)
    second = await search(session, words="दिन", page_size=4, page_token=first.next_page_token)
    assert [hit.seq for hit in (*first.hits, *second.hits)] == [52, 42, 32, 22, 12, 2]
    assert second.next_page_token == ""


@pytest.mark.parametrize("at", [0, 2_961, 2_963, 2_966, 2_990])
async def test_SearchEntries__a_long_phrase_is_excluded_anywhere_in_a_text(session: Session, at: int) -> None:
    await session.append([user(" ".join(WORDS))])
    phrase = " ".join(WORDS[at : at + 40])
    assert await seqs(session, words=f'w1 "{phrase}"') == [2]
    assert await seqs(session, words=f'w1 -"{phrase}"') == []
    assert await seqs(session, words=f'w1 -"{phrase} w1"') == [2]


async def test_SearchEntries__a_long_phrase_is_found_completely(session: Session) -> None:
    parts = " ".join(WORDS[:32]) + " stop " + " ".join(WORDS[16:48])
    await session.append([user(" ".join(WORDS[:48])), user(parts)])
    assert await seqs(session, words=f'"{" ".join(WORDS[:48])}"') == [2]


async def test_SearchEntries__summaries_are_searched(session: Session) -> None:
    await session.append([user("old"), user("kept")])
    kept = (await session.entries())[2].entry_id
    claim = await session.acquire(1)
    compaction = entry_pb2.Compaction(summary="a zebra", first_kept_entry_id=kept)
    branch = entry_pb2.BranchSummary(summary="another zebra", from_entry_id=kept)
    await session.append(
        [entry_pb2.EntryBody(compaction=compaction), entry_pb2.EntryBody(branch_summary=branch)], claim=claim
    )
    assert await seqs(session, words="zebra") == [5, 4]
    assert await seqs(session, pattern="zeb+ra") == [5, 4]


@pytest.mark.parametrize("field", ["from_time", "before_time"])
async def test_SearchEntries__a_malformed_time_is_refused_with_its_field(
    session: Session, field: str
) -> None:
    asked: dict[str, Any] = {field: Timestamp(seconds=10**13)}
    with pytest.raises(MeshError) as error:
        await search(session, words="a", **asked)
    assert error.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in error.value.violations] == [field]
