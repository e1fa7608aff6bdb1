"""WriteDraft and WatchTranscript: the text of an answer while it is given, with exact resume."""

import asyncio

import pytest
from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.rpc import watch_transcript
from spawnmesh_transcript.store import drafts as draft_store

from tests.support.transcript.bodies import assistant, mirror, note, user
from tests.support.transcript.drafts import write_draft
from tests.support.transcript.fixtures import Session, Superuser, refused
from tests.support.transcript.live import kept_drafts, watching

SECONDS = 60.0
MIB = 1024 * 1024


async def test_WatchTranscript__a_draft_becomes_the_entry_that_has_its_text(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("hello")])
    async with watching(session) as watch:
        assert await watch.many(2) == [("entry", 1, False), ("entry", 2, False)]
        assert (await write_draft(session, claim, "Good ", after_seq=2)).end_offset == 5
        assert await watch.next() == ("delta", "Good ", True)
        assert (await write_draft(session, claim, "mörning", offset=5, after_seq=2)).end_offset == 13
        assert await watch.next() == ("delta", "mörning", False)
        await session.append([assistant("Good mörning, Ada")], claim=claim)
        assert await watch.many(2) == [("delta", ", Ada", False), ("entry", 3, True)]
        # The same draft does not come again.
        assert not (await write_draft(session, claim, ", Bob", offset=13, after_seq=2)).accepts_more
        for seq in (4, 5):
            await session.append([note("later")])
            assert await watch.next() == ("entry", seq, False)


async def test_WatchTranscript__begins_behind_a_seq_unless_there_is_a_cursor(session: Session) -> None:
    await session.append([user("one"), user("two"), user("three")])
    async with watching(session, after_seq=2) as watch:
        assert await watch.many(2) == [("entry", 3, False), ("entry", 4, False)]
    claim = await session.acquire(1)
    await write_draft(session, claim, "Hel", after_seq=4)
    async with watching(session, after_seq=4) as watch:
        assert await watch.next() == ("delta", "Hel", True)
        await session.append([assistant("Hello")], claim=claim)
        assert await watch.many(2) == [("delta", "lo", False), ("entry", 5, True)]
    async with watching(session, watch.cursor, after_seq=1) as watch:
        await session.append([user("four")])
        assert await watch.next() == ("entry", 6, False)


async def test_WatchTranscript__a_draft_that_did_not_become_the_answer_is_retracted(
    session: Session, superuser: Superuser
) -> None:
    claim = await session.acquire(1)
    async with watching(session) as watch:
        assert await watch.next() == ("entry", 1, False)
        await write_draft(session, claim, "One")
        assert await watch.next() == ("delta", "One", True)
        # The model broke off; another one begins.
        await write_draft(session, claim, "Two", number=2)
        assert await watch.many(2) == [("draft_retracted",), ("delta", "Two", True)]
        # A piece of the first one comes late.
        assert (await write_draft(session, claim, " and a half", offset=3)).end_offset == 0
        assert (await write_draft(session, claim, "One")).end_offset == 0
        assert await kept_drafts(session, superuser) == [(1, 2, b"Two")]
        await session.append([assistant("Three")], claim=claim)
        assert await watch.many(2) == [("draft_retracted",), ("entry", 2, False)]


@pytest.mark.parametrize("how", ["released", "taken over"])
async def test_WatchTranscript__the_end_of_the_claim_retracts_its_draft(
    session: Session, superuser: Superuser, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_transcript, "_POLL_SECONDS", 3600.0)
    claim = await session.acquire(1)
    await write_draft(session, claim, "One")
    async with watching(session) as watch:
        assert await watch.many(2) == [("entry", 1, False), ("delta", "One", True)]
        if how == "released":
            await session.release(claim)
        else:
            await session.acquire(2)
        assert await watch.next() == ("draft_retracted",)
        await session.append([user("go on")])
        assert await watch.next() == ("entry", 2, False)
        with refused(Reason.WRITER_CLAIM_LOST):
            await write_draft(session, claim, "One", number=2)
        assert await kept_drafts(session, superuser) == []
    async with watching(session) as late:
        assert await late.many(2) == [("entry", 1, False), ("entry", 2, False)]


async def test_WatchTranscript__a_cursor_goes_on_within_a_draft(session: Session) -> None:
    claim = await session.acquire(1)
    await write_draft(session, claim, "abc")
    async with watching(session) as watch:
        assert await watch.many(2) == [("entry", 1, False), ("delta", "abc", True)]
        cursor = watch.cursor
    # Nothing new: only the text that comes is sent.
    async with watching(session, cursor) as watch:
        await write_draft(session, claim, "def", offset=3)
        assert await watch.next() == ("delta", "def", False)
    # It grew while the watcher was away.
    async with watching(session, cursor) as watch:
        assert await watch.next() == ("delta", "def", False)
    # It became an entry while the watcher was away.
    await session.append([assistant("abcdefghi")], claim=claim)
    async with watching(session, cursor) as watch:
        assert await watch.many(2) == [("delta", "defghi", False), ("entry", 2, True)]
        behind = watch.cursor
    # The next answer has begun.
    await write_draft(session, claim, "xyz", number=2, after_seq=2)
    async with watching(session, cursor) as watch:
        assert await watch.many(3) == [
            ("delta", "defghi", False),
            ("entry", 2, True),
            ("delta", "xyz", True),
        ]
    async with watching(session, behind) as watch:
        assert await watch.next() == ("delta", "xyz", True)


async def test_WatchTranscript__a_cursor_within_a_draft_that_is_gone_is_told_so(session: Session) -> None:
    claim = await session.acquire(1)
    await write_draft(session, claim, "abc")
    async with watching(session) as watch:
        await watch.many(2)
        cursor = watch.cursor
    await write_draft(session, claim, "ABC", number=2)
    async with watching(session, cursor) as watch:
        assert await watch.many(2) == [("draft_retracted",), ("delta", "ABC", True)]
    await session.append([assistant("ABC")], claim=claim)
    async with watching(session, cursor) as watch:
        assert await watch.many(2) == [("draft_retracted",), ("entry", 2, False)]


async def test_WatchTranscript__a_draft_that_another_text_replaced_is_retracted(
    session: Session, superuser: Superuser
) -> None:
    """A server that lost the last writes of a draft gets them again, perhaps with another text."""
    claim = await session.acquire(1)
    await write_draft(session, claim, "abc")
    async with watching(session) as watch:
        await watch.many(2)
        cursor = watch.cursor
    await superuser.execute("delete from draft_pieces where session_id = %s", (session.session_id,))
    async with watching(session, cursor) as watch:
        assert await watch.next() == ("draft_retracted",)
        await write_draft(session, claim, "abX")
        assert await watch.next() == ("delta", "abX", True)


async def test_WatchTranscript__entries_of_others_leave_the_draft_open(session: Session) -> None:
    claim = await session.acquire(1)
    async with watching(session) as watch:
        await watch.next()
        await write_draft(session, claim, "abc")
        assert await watch.next() == ("delta", "abc", True)
        await session.append([mirror("m")], token=session.mirror_token())
        assert await watch.next() == ("entry", 2, False)
        await write_draft(session, claim, "def", offset=3)
        assert await watch.next() == ("delta", "def", False)
        await session.append([assistant("abcdef")], claim=claim)
        assert await watch.next() == ("entry", 3, True)


async def test_WatchTranscript__a_deleted_transcript_ends_it(session: Session, superuser: Superuser) -> None:
    claim = await session.acquire(1)
    await write_draft(session, claim, "abc")
    async with watching(session) as watch:
        await watch.many(2)
        cursor = watch.cursor
        await session.delete()
        with refused(Reason.NOT_FOUND):
            await watch.next()
    assert await kept_drafts(session, superuser) == []
    with refused(Reason.NOT_FOUND):
        async with watching(session):
            pass
    await session.create_anew()
    with refused(Reason.NOT_FOUND):
        async with watching(session, cursor):
            pass


async def test_WatchTranscript__a_cursor_that_is_none_of_the_session_is_refused(session: Session) -> None:
    other = session.sibling()
    await other.create()
    async with watching(other) as watch:
        await watch.next()
        foreign = watch.cursor
    for cursor in (foreign, "x", "W10", "WzFd", "bm8", "'; drop", foreign[:-2], "W1tdLDFd" * 20):
        with refused(Reason.INVALID_REQUEST):
            async with watching(session, cursor):
                pass


async def test_WriteDraft__a_repeat_adds_nothing_and_a_gap_is_told(session: Session) -> None:
    claim = await session.acquire(1)
    assert (await write_draft(session, claim, "late", offset=7)).end_offset == 0
    for _ in range(2):
        assert await write_draft(session, claim, "abc") == live_pb.WriteDraftResponse(
            end_offset=3, accepts_more=True
        )
    assert (await write_draft(session, claim, "longer than before")).end_offset == 3
    both = await asyncio.gather(*(write_draft(session, claim, text, offset=3) for text in ("de", "def", "d")))
    ends = {response.end_offset for response in both}
    settled = (await write_draft(session, claim, "abc")).end_offset
    assert settled in (4, 5, 6)
    assert ends <= {3, settled}


async def test_WriteDraft__keeps_a_mebibyte_and_the_rest_comes_with_the_entry(session: Session) -> None:
    claim = await session.acquire(1)
    piece = "x" * (64 * 1024)
    for number in range(16):
        written = await write_draft(session, claim, piece, offset=number * len(piece))
        assert written == live_pb.WriteDraftResponse(end_offset=(number + 1) * len(piece), accepts_more=True)
    assert await write_draft(session, claim, "y", offset=MIB) == live_pb.WriteDraftResponse(
        end_offset=MIB, accepts_more=False
    )
    async with watching(session) as watch:
        await watch.next()
        said = [await watch.next() for _ in range(16)]
        assert [event[0] for event in said] == ["delta"] * 16
        await session.append([assistant(piece * 16 + "y")], claim=claim)
        assert await watch.many(2) == [("delta", "y", False), ("entry", 2, True)]


async def test_WriteDraft__a_tenant_that_masks_secrets_has_no_drafts(session: Session) -> None:
    claim = await session.acquire(1)
    await write_draft(session, claim, "The key is ")
    async with watching(session) as watch:
        assert await watch.many(2) == [("entry", 1, False), ("delta", "The key is ", True)]
        await session.prepare_tenant(2, mask_secrets=True)
        assert not (await write_draft(session, claim, "secret", offset=11)).accepts_more
        await session.append([user("hello")])
        assert sorted(await watch.many(2)) == [("draft_retracted",), ("entry", 2, False)]
    async with watching(session) as watch:
        assert await watch.many(2) == [("entry", 1, False), ("entry", 2, False)]


async def test_WatchTranscript__many_watchers_of_a_draft_get_the_same(session: Session) -> None:
    claim = await session.acquire(1)
    pieces = [f"{number} " for number in range(40)]
    watchers = 20
    are_watching = asyncio.Barrier(watchers + 1)

    async def read() -> str:
        text = ""
        async with watching(session) as watch:
            await watch.next()
            await are_watching.wait()
            while True:
                kind, what, *_ = await watch.next()
                if kind == "entry":
                    return text
                assert kind == "delta"
                text += what

    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(read()) for _ in range(watchers)]
        offset = (await write_draft(session, claim, pieces[0])).end_offset
        await are_watching.wait()
        for piece in pieces[1:]:
            offset = (await write_draft(session, claim, piece, offset=offset)).end_offset
        await session.append([assistant("".join(pieces))], claim=claim)
    assert {task.result() for task in reading} == {"".join(pieces)}


async def test_WriteDraft__a_seq_that_is_not_near_the_head_is_that_of_no_draft(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await session.acquire(1)
    for seq in (2, 2**63 - 1):
        assert await write_draft(session, claim, "abc", after_seq=seq) == live_pb.WriteDraftResponse()
    monkeypatch.setattr(draft_store, "MAX_ENTRIES_MEANWHILE", 3)
    await session.append([note("n")] * 4)
    assert await write_draft(session, claim, "abc", after_seq=1) == live_pb.WriteDraftResponse()
    assert (await write_draft(session, claim, "abc", after_seq=2)).accepts_more


async def test_WriteDraft__a_draft_has_a_bounded_number_of_pieces(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_store, "MAX_PIECES", 3)
    claim = await session.acquire(1)
    written = [await write_draft(session, claim, "x", offset=offset) for offset in range(5)]
    assert [(one.end_offset, one.accepts_more) for one in written] == [
        (1, True),
        (2, True),
        (3, True),
        (3, False),
        (3, False),
    ]
    assert (await write_draft(session, claim, "y", number=2)).accepts_more


async def test_WatchTranscript__pieces_that_were_cut_anew_come_with_the_next_one(
    session: Session, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lost its last writes, and the run writes the same text in other pieces."""
    monkeypatch.setattr(watch_transcript, "_POLL_SECONDS", 3600.0)
    claim = await session.acquire(1)
    await write_draft(session, claim, "abc")
    await write_draft(session, claim, "def", offset=3)
    async with watching(session) as watch:
        assert await watch.many(3) == [("entry", 1, False), ("delta", "abc", True), ("delta", "def", False)]
        await superuser.execute(
            "delete from draft_pieces where session_id = %s and begin_offset = 3", (session.session_id,)
        )
        await write_draft(session, claim, "d", offset=3)
        await write_draft(session, claim, "efgh", offset=4)
        await write_draft(session, claim, "i", offset=8)
        text = ""
        while text != "ghi":
            kind, piece, _ = await watch.next()
            assert kind == "delta"
            text += piece


async def test_PurgeTenant__leaves_no_draft(session: Session, superuser: Superuser) -> None:
    await write_draft(session, await session.acquire(1), "abc")
    while not (await session.purge_tenant()).done:
        pass
    assert await kept_drafts(session, superuser) == []
