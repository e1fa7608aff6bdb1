"""SearchEntries finds every match that the caller may read."""

import asyncio
import json
import random
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.operations.search import find_entries as searching
from spawnmesh_transcript.operations.search import index as search_index

from tests.support.transcript.bodies import (
    assistant,
    bash,
    call_block,
    extension,
    mirror,
    note,
    result,
    superseded,
    user,
)
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.searching import search, seqs
from tests.support.transcript.tables import Superuser, rows_of


async def _filled(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("The quick brown fox"), note("a fox in the files")])
    await session.append(
        [
            assistant("quick, said the FOX", "c"),
            result("c", "我在北京大学学习 fox"),
            bash("grep fox", "nothing"),
            extension("brown fox"),
        ],
        claim=claim,
    )
    await session.append([mirror("mirrored fox")], token=session.mirror_token())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fox", [7, 6, 5, 4, 3, 2]),
        ("quick fox", [4, 2]),
        ('"brown fox"', [7, 2]),
        ("fox -quick", [7, 6, 5, 3]),
        ("qui*", [4, 2]),
        ("北京", [5]),
        ("大学学习", [5]),
        ("京", [5]),
        ("学北", []),
        ("wolf", []),
        ("nothing grep", [6]),
    ],
)
async def test_SearchEntries__by_words(session: Session, words: str, expected: list[int]) -> None:
    await _filled(session)
    assert await seqs(session, words=words) == expected


async def test_SearchEntries__entries_appended_since_the_last_search_are_found(session: Session) -> None:
    assert await seqs(session, words="late") == []
    for seq in range(2, 6):
        await session.append([user("late word")])
        assert await seqs(session, words="late") == list(range(seq, 1, -1))


async def test_SearchEntries__concurrent_searches_index_each_entry_once(
    session: Session, superuser: Superuser
) -> None:
    for _ in range(4):
        await session.append([user("many words")] * 250)
    found = await asyncio.gather(*(seqs(session, words="many", page_size=200) for _ in range(8)))
    assert found == [list(range(1001, 801, -1))] * 8
    assert (await rows_of(superuser, session.tenant_id))["search_pieces"] == 1000


async def test_SearchEntries__filters(session: Session) -> None:
    await _filled(session)
    only = entry_pb2.EntryFilter
    assert await seqs(session, words="fox", filter=only(roles=[content_pb.ROLE_USER])) == [2]
    assert await seqs(session, words="fox", filter=only(kinds=[entry_pb2.ENTRY_KIND_NOTE])) == [3]
    assert await seqs(session, words="fox", filter=only(kinds=[entry_pb2.ENTRY_KIND_MIRROR])) == [8]
    assert await seqs(session, words="fox", after_seq=3, before_seq=6) == [5, 4]
    entries = await session.entries()
    middle = entries[3].create_time
    assert await seqs(session, words="fox", from_time=middle) == [7, 6, 5, 4]
    assert await seqs(session, words="fox", before_time=middle) == [3, 2]
    assert await seqs(session, pattern="fox$", before_time=middle) == [2]


async def test_SearchEntries__superseded_drafts_are_found_only_on_request(session: Session) -> None:
    claim = await session.acquire(1)
    draft = await session.append([assistant("a draft")], claim=claim)
    await session.append([superseded(draft.entries[0].entry_id)], claim=claim)
    for query in ({"words": "draft"}, {"pattern": "draf"}):
        assert await seqs(session, **query) == []
        assert await seqs(session, **query, with_superseded=True) == [2]


async def test_SearchEntries__a_hit_has_position_and_snippet(session: Session) -> None:
    claim = await session.acquire(1)
    call = call_block("c", json.dumps({"name": "exec", "input": {"command": "line\nnéedle in it"}}), "exec")
    text = content_pb.ContentBlock(text=content_pb.Text(text="é" * 300 + " Needle " + "x" * 300))
    message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[text, call])
    appended = await session.append([entry_pb2.EntryBody(message=message)], claim=claim)
    (hit,) = (await search(session, words="needle")).hits
    assert (hit.session_id, hit.entry_id, hit.seq) == (session.session_id, appended.entries[0].entry_id, 2)
    assert (hit.kind, hit.path) == (entry_pb2.ENTRY_KIND_MESSAGE, "message.content[0].text.text")
    assert hit.byte_offset == 601
    assert " Needle " in hit.snippet
    assert len(hit.snippet) < 200
    (by_pattern,) = (await search(session, pattern="N..dle")).hits
    assert (by_pattern.path, by_pattern.byte_offset) == (hit.path, hit.byte_offset)
    (in_call,) = (await search(session, words="néedle")).hits
    assert in_call.path == "message.content[1].tool_call.block_json"
    assert call.tool_call.block_json.encode()[in_call.byte_offset :].startswith(rb"n\u00e9edle in it")
    (of_name,) = (await search(session, words="exec")).hits
    assert call.tool_call.block_json.encode()[of_name.byte_offset :].startswith(b'exec"')


async def test_SearchEntries__pages(session: Session) -> None:
    await session.append([user(f"word {number}") for number in range(25)])
    child = session.sibling()
    await child.create(child_of=session)
    await child.append([user("word of the child")] * 3)
    seen: list[tuple[str, int]] = []
    token = ""
    for _ in range(10):
        page = await search(session, words="word", with_descendants=True, page_size=7, page_token=token)
        seen += [(hit.session_id, hit.seq) for hit in page.hits]
        token = page.next_page_token
        if not token:
            break
    assert seen == [
        *((session.session_id, seq) for seq in range(26, 1, -1)),
        *((child.session_id, seq) for seq in (4, 3, 2)),
    ]
    with refused(Reason.INVALID_REQUEST):
        await search(session, words="word", page_token="x")


@pytest.mark.parametrize("words", ["!!!", "-fox", '""', "-", "***"])
async def test_SearchEntries__an_empty_query_is_refused(session: Session, words: str) -> None:
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, words=words)
    assert facts["why"] == "NO_WORDS"


@pytest.mark.parametrize("pattern", ["(a)\\1", "a(?=b)", "("])
async def test_SearchEntries__an_unsupported_pattern_is_refused(session: Session, pattern: str) -> None:
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern=pattern)
    assert facts["why"] == "PATTERN"


async def test_SearchEntries__a_pattern_over_too_much_text_is_refused_until_the_range_is_narrow(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PATTERN_ENTRY_LIMIT", 20)
    await session.append([user(f"number {number}") for number in range(40)])
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern="number 1[0-9]")
    assert (facts["why"], facts["pattern_entry_limit"]) == ("WINDOW", "20")
    assert await seqs(session, pattern="number 1[0-9]", after_seq=1, before_seq=20) == list(range(19, 11, -1))
    monkeypatch.setattr(searching, "PATTERN_BYTE_LIMIT", 100)
    with refused(Reason.SEARCH_REFUSED):
        await search(session, pattern="number", after_seq=1, before_seq=20)


async def test_SearchEntries__a_long_transcript_is_searched_in_several_calls(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_INDEX_SECONDS", 0.0)
    monkeypatch.setattr(search_index, "_PAGE_SIZE", 10)
    await session.append([user("word")] * 5)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await search(session, words="word")
    monkeypatch.setattr(searching, "_INDEX_SECONDS", 60.0)
    await session.append([user("word")] * 100)
    assert len(await seqs(session, words="word", page_size=200)) == 105


async def test_SearchEntries__a_run_searches_its_session_and_its_descendants(session: Session) -> None:
    child, grandchild, sibling = session.sibling(), session.sibling(), session.sibling()
    await child.create(child_of=session)
    await grandchild.create(child_of=child)
    await sibling.create()
    for one in (session, child, grandchild, sibling):
        await one.append([user("shared word")])
    claim = await child.acquire(1)
    token = child.run_token(claim)

    async def found(asked: Session, **more: Any) -> set[str]:
        return {hit.session_id for hit in (await search(asked, words="shared", token=token, **more)).hits}

    assert await found(child) == {child.session_id}
    assert await found(child, with_descendants=True) == {child.session_id, grandchild.session_id}
    assert await found(grandchild) == {grandchild.session_id}
    assert (await grandchild.page(token=token)).head.seq == 2
    for other in (session, sibling):
        with refused(Reason.NOT_FOUND):
            await found(other)
        with refused(Reason.NOT_FOUND):
            await other.page(token=token)
    await child.delete()
    family = await search(session, words="shared", with_descendants=True)
    assert {hit.session_id for hit in family.hits} == {session.session_id, grandchild.session_id}


async def test_SearchEntries__another_tenant_finds_nothing(session: Session) -> None:
    await session.append([user("ours")])
    stranger = Session(session.service, f"{session.tenant_id}-x", session.session_id)
    with refused(Reason.NOT_FOUND):
        await search(stranger, words="ours")
    await stranger.create()
    assert await seqs(stranger, words="ours") == []
    assert await seqs(session, words="ours") == [2]


async def test_SearchEntries__deleted_entries_leave_no_words(session: Session, superuser: Superuser) -> None:
    await session.append([user("gone")])
    await search(session, words="gone")
    await session.delete()
    with refused(Reason.NOT_FOUND):
        await search(session, words="gone")
    assert await rows_of(superuser, session.tenant_id) == {"transcripts": 1}
    await session.create_anew()
    assert await seqs(session, words="gone") == []
    await session.append([user("gone")])
    assert await seqs(session, words="gone") == [2]
    assert (await session.purge_tenant()).done
    assert await rows_of(superuser, session.tenant_id) == {"purged_tenants": 1}


async def test_SearchEntries__redacted_or_masked_text_is_not_found(session: Session) -> None:
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)
    spawn = {
        "name": "sessions_spawn",
        "input": {"task": "visible", "attachments": [{"content": "hiddenbytes"}]},
    }
    blocks = [call_block("c", json.dumps(spawn), "sessions_spawn")]
    message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=blocks)
    await session.append([entry_pb2.EntryBody(message=message)], claim=claim)
    assert await seqs(session, words="visible") == [2]
    assert await seqs(session, words="hiddenbytes") == []
    assert await seqs(session, pattern="hidden") == []


async def test_SearchEntries__long_words_of_many_bytes_are_found(session: Session) -> None:
    letters = "абвгдежзик"
    words = ["".join(letters[int(digit)] for digit in f"{number:0200}") for number in range(2900)]
    await session.append([user(" ".join(words))])
    assert await seqs(session, words=words[2750]) == [2]


async def test_SearchEntries__more_words_than_the_limit_are_refused(session: Session) -> None:
    await session.append([user("a b")])
    assert await seqs(session, words=" ".join(["a"] * 32)) == [2]
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, words=" ".join([*["a"] * 32, "-b"]))
    assert (facts["why"], facts["term_limit"]) == ("WORDS", "32")


async def test_SearchEntries__resumes_behind_a_session_that_was_deleted(session: Session) -> None:
    children = sorted((session.sibling() for _ in range(2)), key=lambda child: child.session_id)
    for child in children:
        await child.create(child_of=session)
        await child.append([user("word")] * 2)
    first = await search(session, words="word", with_descendants=True, page_size=1)
    assert [hit.session_id for hit in first.hits] == [children[0].session_id]
    await children[0].delete()
    rest = await search(session, words="word", with_descendants=True, page_token=first.next_page_token)
    assert [hit.session_id for hit in rest.hits] == [children[1].session_id] * 2


async def test_SearchEntries__a_session_deleted_meanwhile_hides_no_others(
    session: Session, superuser: Superuser
) -> None:
    child = session.sibling()
    await child.create(child_of=session)
    for one in (session, child):
        await one.append([user("word")])
    async with superuser.transaction():
        held = "select from transcript.transcripts where session_id = %s for update"
        await superuser.execute(held, (session.session_id,))
        searching_now = asyncio.create_task(seqs(session, words="word", with_descendants=True))
        async with asyncio.timeout(60):
            while (
                await (await superuser.execute("select from pg_locks where not granted")).fetchone() is None
            ):
                await asyncio.sleep(0.02)
        await child.delete()
    assert await searching_now == [2]


async def test_SearchEntries__the_pattern_limit_counts_all_sessions(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PATTERN_ENTRY_LIMIT", 20)
    for _ in range(3):
        child = session.sibling()
        await child.create(child_of=session)
        await child.append([user("word")] * 9)
        assert len(await seqs(child, pattern="w.rd")) == 9
    with refused(Reason.SEARCH_REFUSED) as facts:
        await search(session, pattern="w.rd", with_descendants=True, page_size=200)
    assert facts["why"] == "WINDOW"


@pytest.mark.parametrize("token", [["ses", float("inf")], ["ses"], "x", {}, [[]] * 2])
async def test_SearchEntries__an_unknown_page_token_is_refused(session: Session, token: Any) -> None:
    with refused(Reason.INVALID_REQUEST):
        await search(session, words="a", page_token=urlsafe_b64encode(json.dumps(token).encode()).decode())


@pytest.mark.parametrize("start", [0, 2_940, 2_955, 2_967, 3_100])
async def test_SearchEntries__long_parts_of_a_text_are_found_anywhere_in_it(
    session: Session, start: int
) -> None:
    drawn = random.Random(1)
    text = "".join(chr(drawn.randrange(0x4E00, 0x9000)) for _ in range(4_000))
    words = [f"w{drawn.randrange(10**9)}" for _ in range(4_000)]
    await session.append([user(text), user(" ".join(words))])
    assert await seqs(session, words=text[start : start + 60]) == [2]
    assert await seqs(session, words=f'"{" ".join(words[start : start + 60])}"') == [3]
    turned = text[start + 30 : start + 60] + text[start : start + 30]
    assert await seqs(session, words=turned) == []
