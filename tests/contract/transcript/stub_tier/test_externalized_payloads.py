"""Entries whose payloads only the blob store has: every RPC reads them unchanged."""

import asyncio
from base64 import b64encode
from dataclasses import replace
from typing import Any

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import text_of, user
from tests.support.transcript.files import HEADER, exported, file_of, message, send
from tests.support.transcript.fixtures import refused
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import NO_TAIL, long_text
from tests.support.transcript.tier_sessions import (
    APPLY,
    DRY_RUN,
    PICTURE,
    REVERT,
    TierSession,
    count_rows,
    dropped,
    with_image,
)


async def test_every_rpc_reads_externalized_entries_unchanged(
    filled: TierSession, superuser: Superuser
) -> None:
    before = await filled.readings()
    assert not await dropped(superuser, filled)
    planned = await filled.tier(DRY_RUN)
    applied = await filled.tier(APPLY)
    assert planned == applied
    shorter = await dropped(superuser, filled)
    assert list(shorter) == [2, 4, 6, 8], "the user's picture, two results, and one of several blocks"
    assert applied == {"cooled_entry_count": 4, "cooled_bytes": sum(shorter.values())}
    assert await filled.readings() == before
    size = await filled.size()
    assert size.logical_bytes - size.stored_bytes == sum(shorter.values())
    assert size.entry_count == len(before["entries"])


async def test_first_searches_of_externalized_entries_find_their_words(filled: TierSession) -> None:
    await filled.tier(APPLY)
    [hit] = await filled.search(words="beta77")
    assert (hit.seq, hit.file_id != "") == (6, True)
    assert [one.seq for one in await filled.search(pattern="^alpha0 alpha1 ")] == [4]


async def test_ListEntries__pages_count_the_bytes_of_complete_bodies(tier_session: TierSession) -> None:
    claim = await tier_session.session.acquire(1)
    await tier_session.converse(claim, *(long_text(f"w{number}x", 1_500_000) for number in range(4)))
    await tier_session.age(claim)
    pages = [
        [entry.seq for entry in (await tier_session.session.page(after_seq=seq)).entries]
        for seq in (0, 4, 6, 8)
    ]
    await tier_session.tier(APPLY)
    assert pages == [
        [entry.seq for entry in (await tier_session.session.page(after_seq=seq)).entries]
        for seq in (0, 4, 6, 8)
    ]
    assert len(pages[0]) == 6


async def test_CloseWindow__holds_over_entries_externalized_while_it_was_open(
    tier_session: TierSession, superuser: Superuser
) -> None:
    claim = await tier_session.session.acquire(1)
    await tier_session.session.append([user("task")])
    fence = await tier_session.session.open_window(claim)
    await tier_session.converse(claim, long_text("a"), long_text("b"))
    await tier_session.age(claim)
    await tier_session.tier(APPLY)
    assert await dropped(superuser, tier_session)
    fence = await tier_session.session.close_window(claim, fence)
    assert fence.seq == 7
    assert (await tier_session.session.close_window(claim, fence)).seq == 7


async def test_CreateTranscript__a_fork_of_externalized_entries_is_complete(filled: TierSession) -> None:
    hot = filled.to(filled.session.sibling())
    await hot.session.create(fork_of=filled.session, max_token_count=200_000)
    await filled.tier(APPLY)
    fork = filled.to(filled.session.sibling())
    for _ in range(2):
        await fork.session.create(fork_of=filled.session, max_token_count=200_000)

    def said(entries: Any) -> list[bytes]:
        return [entry.body.SerializeToString(deterministic=True) for entry in entries[1:]]

    assert said(await fork.session.entries()) == said(await hot.session.entries())
    assert len(await fork.session.entries()) > 5


async def test_AssembleContext__a_context_of_references_does_not_call_the_blob_store(
    tier_session: TierSession, away: TierSession
) -> None:
    claim = await tier_session.session.acquire(1)
    await tier_session.session.append([user("task")])
    await tier_session.converse(claim, long_text("a"), long_text("b"))
    await tier_session.age(claim)
    await tier_session.tier(APPLY)
    context = await away.context(tail=NO_TAIL)
    assert len(context.stubbed) == 2
    assert context == await tier_session.context(tail=NO_TAIL)


async def test_without_the_blob_store_externalized_entries_cannot_be_read_and_all_others_can(
    filled: TierSession, away: TierSession
) -> None:
    await filled.tier(APPLY)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await away.session.entries()
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await away.context()
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await exported(away.session)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await away.search(words="alpha17")
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await away.session.sibling().create(fork_of=away.session, max_token_count=200_000)
    assert [entry.seq for entry in await away.session.entries(after_seq=8)] == [9]
    appended = await away.session.append([user("go on")])
    assert appended.head.seq == 10


async def test_a_payload_that_was_changed_is_refused(filled: TierSession, superuser: Superuser) -> None:
    await filled.tier(APPLY)
    rows = await superuser.execute(
        "select sha256 from payloads where tenant_id = %s and seq = 4", (filled.session.tenant_id,)
    )
    [(sha256,)] = await rows.fetchall()
    await asyncio.to_thread(filled.blobs.overwrite, sha256, b"x" * len(long_text("alpha")))
    with refused(Reason.STORED_HASH_DIFFERS):
        await filled.session.entries()
    assert len((await filled.context(tail=NO_TAIL)).entries) == 8, "references need no payload"
    await asyncio.to_thread(filled.blobs.lose, sha256)
    with refused(Reason.STORED_HASH_DIFFERS):
        await filled.session.entries()


async def test_TierTranscript__drops_nothing_that_the_blob_store_does_not_return(
    filled: TierSession, superuser: Superuser
) -> None:
    rows = await superuser.execute(
        "select sha256 from payloads where tenant_id = %s and seq = 4", (filled.session.tenant_id,)
    )
    [(sha256,)] = await rows.fetchall()
    before = await filled.readings()
    await asyncio.to_thread(filled.blobs.overwrite, sha256, b"x" * 10_000)
    applied = await filled.tier(APPLY)
    assert (applied["failed_entry_count"], applied["failure_reason"]) == (1, "STORED_HASH_DIFFERS")
    assert applied["cooled_entry_count"] == 3
    assert 4 not in await dropped(superuser, filled)
    assert await filled.readings() == before
    await asyncio.to_thread(filled.blobs.overwrite, sha256, long_text("alpha").encode())
    assert (await filled.tier(APPLY))["cooled_entry_count"] == 1
    assert await filled.readings() == before


async def test_AssembleContext__with_the_tier_off_it_equals_a_context_without_the_tier(
    filled: TierSession,
) -> None:
    """Compares a transcript with externalized entries to one that never left the database."""
    await filled.set_tier(2, is_on=False)
    never = [_bytes(await filled.context(budget, tail=NO_TAIL)) for budget in (200_000, 60_000)]
    await filled.set_tier(3, is_on=True)
    await filled.tier(APPLY)
    await filled.set_tier(4, is_on=False)
    assert [_bytes(await filled.context(budget, tail=NO_TAIL)) for budget in (200_000, 60_000)] == never
    stored = (await filled.session.entries())[1:]
    assert list((await filled.context()).entries) == stored


async def test_images_of_users_and_models_are_stored_and_shown_in_a_context_that_fits(
    tier_session: TierSession, superuser: Superuser
) -> None:
    claim = await tier_session.session.acquire(1)
    await tier_session.session.append([with_image("small", PICTURE[:7_999])])
    await tier_session.session.append([with_image("two", PICTURE[:5_000], PICTURE[5_000:9_000])])
    await tier_session.session.append(
        [with_image("seen", PICTURE, role=content_pb.ROLE_ASSISTANT)], claim=claim
    )
    await tier_session.age(claim)
    stored = await tier_session.session.entries()
    async with asyncio.timeout(60):
        while (await tier_session.tier(APPLY)).get("cooled_entry_count", 0) < 2 and len(
            await dropped(superuser, tier_session)
        ) < 2:
            await asyncio.sleep(0.02)
    assert list(await dropped(superuser, tier_session)) == [3, 4]
    context = await tier_session.context(tail=NO_TAIL)
    assert list(context.entries) == stored[1:]
    assert not context.stubbed


async def test_ImportTranscript__stores_large_payloads_as_appends_do(
    tier_session: TierSession, superuser: Superuser
) -> None:
    imported = tier_session.to(tier_session.session.sibling())
    text, picture = long_text("imported"), b64encode(PICTURE).decode()
    image = {"type": "image", "data": picture, "mimeType": "image/png"}
    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "/in"}}
    file = file_of(
        HEADER,
        message(1, content=[{"type": "text", "text": "see"}, image]),
        message(2, "assistant", [call]),
        message(3, "toolResult", [{"type": "text", "text": text}], toolCallId="c1", toolName="read"),
        message(4, "assistant", "word " * 40_000),
    )
    await send(imported.session, file, chunk_bytes=100_000)
    before = await imported.readings()
    async with asyncio.timeout(60):
        while not (context := await imported.context(tail=NO_TAIL)).stubbed:
            await asyncio.sleep(0.02)
    assert "path: /in" in text_of(context.entries[2])
    assert (await imported.tier(APPLY))["cooled_entry_count"] == 2
    assert list(await dropped(superuser, imported)) == [2, 4]
    after = await imported.readings()
    assert after["entries"] == before["entries"]
    assert after["export"] == before["export"]
    await imported.session.delete()
    assert await asyncio.to_thread(tier_session.blobs.object_keys) == []


async def test_ImportTranscript__a_refused_or_cut_off_import_leaves_no_payload(
    tier_session: TierSession, superuser: Superuser
) -> None:
    other = tier_session.to(tier_session.session.sibling())
    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {}}
    lines = [HEADER, message(1, "assistant", [call])]
    large = message(2, "toolResult", [{"type": "text", "text": long_text("r")}], toolCallId="c1")
    with refused(Reason.IMPORT_MALFORMED):
        await send(other.session, file_of(*lines, large, "{"), chunk_bytes=600_000)
    assert (
        await count_rows(superuser, tier_session, "payloads")
        == await count_rows(superuser, tier_session, "stubs")
        == 0
    )
    await send(other.session, file_of(*lines, large), finish=False, chunk_bytes=600_000)
    assert await count_rows(superuser, tier_session, "payloads") == 1
    assert await asyncio.to_thread(tier_session.blobs.object_keys) == [], (
        "no payload is put that no caller may read"
    )
    await other.session.delete()
    assert await count_rows(superuser, tier_session, "payloads") == 0


async def test_DescribeFile__reads_files_of_externalized_entries(filled: TierSession) -> None:
    await filled.tier(APPLY)
    stubbed = (await filled.context(tail=NO_TAIL)).stubbed
    assert (await filled.describe(stubbed[0].file_ids[0], expand=True)).content.data.decode() == long_text(
        "alpha"
    )


async def test_DescribeFile__a_file_externalized_during_its_lookup_is_complete(
    filled: TierSession, superuser: Superuser
) -> None:
    await filled.tier(APPLY)
    stubbed = (await filled.context(tail=NO_TAIL)).stubbed[0]
    # The rows as the first of its two reads saw them, before the payload was put and dropped.
    await superuser.execute(
        "update payloads set is_stored = false where tenant_id = %s and seq = %s",
        (filled.session.tenant_id, stubbed.seq),
    )
    described = await filled.describe(stubbed.file_ids[0], expand=True)
    assert described.content.data.decode() == long_text("alpha")


async def test_a_deleted_externalized_transcript_leaves_nothing(
    filled: TierSession, superuser: Superuser
) -> None:
    await filled.tier(APPLY)
    other = filled.to(filled.session.sibling())
    await other.session.create()
    await other.fill()
    await other.tier(APPLY)
    await filled.session.delete()
    with refused(Reason.NOT_FOUND):
        await filled.session.entries()
    assert len(await other.session.entries()) == 9
    while not (await filled.session.purge_tenant()).done:
        pass
    for table in ("payloads", "stubs", "entries", "transcripts", "tenants"):
        assert await count_rows(superuser, filled, table) == 0


async def test_ListTranscripts__lists_readable_transcripts_in_pages(filled: TierSession) -> None:
    others = [filled.to(filled.session.sibling()) for _ in range(2)]
    for other in others:
        await other.session.create()
    await others[0].session.delete()
    sizes = await filled.sizes()
    assert {size.session_id: size.entry_count for size in sizes} == {
        filled.session.session_id: 9,
        others[1].session.session_id: 1,
    }
    assert await filled.sizes(page_size=1) == sizes
    assert (await filled.size()).token_count > 40_000
    stranger = filled.to(replace(filled.session, tenant_id=f"{filled.session.tenant_id}-x"))
    assert await stranger.sizes() == []
    with refused(Reason.NOT_FOUND):
        await stranger.start_tier(REVERT)


def _bytes(answer: Any) -> bytes:
    data: bytes = answer.SerializeToString(deterministic=True)
    return data
