"""WriteDraft and WatchTranscript: the text of an answer while it is given, with exact resume."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece, ToolCallPiece
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh_core.call_blocks import call_block
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_transcript.rpc import watch_transcript
from spawnmesh_transcript.store import drafts as draft_store

from tests.support.transcript.drafts import write_draft
from tests.support.transcript.fixtures import (
    Session,
    Superuser,
    assistant,
    mirror,
    note,
    refused,
    user,
)

SECONDS = 60.0
MIB = 1024 * 1024


class Watching:
    """A WatchTranscript stream, read event by event with a timeout."""

    def __init__(self, answers: AsyncIterator[live_pb.WatchTranscriptResponse]) -> None:
        self.answers = answers
        self.cursor = ""
        self.read_seq = -1

    async def first(self) -> None:
        response = await self._next()
        assert response.WhichOneof("event") is None

    async def next(self) -> tuple[Any, ...]:
        """Return the next event: its kind, and its text, or its seq and what it completes."""
        response = await self._next()
        match response.WhichOneof("event"):
            case "entry_appended":
                return ("entry", response.entry_appended.entry.seq, response.entry_appended.completes_draft)
            case "draft_delta":
                delta = response.draft_delta
                said = delta.tool_call if delta.HasField("tool_call") else delta.thinking or delta.text
                kind = "delta" if delta.HasField("text") else delta.WhichOneof("delta")
                return (kind, said, delta.begins_draft)
            case other:
                return (other,)

    async def many(self, count: int) -> list[tuple[Any, ...]]:
        return [await self.next() for _ in range(count)]

    async def _next(self) -> live_pb.WatchTranscriptResponse:
        async with asyncio.timeout(SECONDS):
            response = await anext(self.answers)
        assert response.read_seq >= self.read_seq
        self.cursor, self.read_seq = response.cursor, response.read_seq
        return response


@asynccontextmanager
async def watching(
    session: Session, cursor: str = "", *, after_seq: int = 0, token: str = "", peer: Peer | None = None
) -> AsyncIterator[Watching]:
    request = live_pb.WatchTranscriptRequest(
        session_id=session.session_id, cursor=cursor, after_seq=after_seq
    )
    source = peer or session.service.peer
    with use_token(token or session.service_token()):
        answers = source.stream(
            LiveServiceStub(source.channel).WatchTranscript, request, timeout_seconds=3 * SECONDS
        )
        async with aclosing(answers):
            watch = Watching(answers)
            await watch.first()
            yield watch


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


async def test_WatchTranscript__thinking_and_calls_of_tools_come_piece_by_piece(session: Session) -> None:
    claim = await session.acquire(1)

    def part(arguments: str, *, begins: bool) -> ToolCallPiece:
        return ToolCallPiece(tool_call_id="c1", name="read_file", arguments=arguments, begins_call=begins)

    async with watching(session) as watch:
        assert await watch.next() == ("entry", 1, False)
        written = await write_draft(
            session, claim, DraftPiece(thinking="Hm. "), "Yes.", DraftPiece(thinking="Well.")
        )
        assert written.end_offset == 13
        assert await watch.many(3) == [
            ("thinking", "Hm. ", True),
            ("delta", "Yes.", False),
            ("thinking", "Well.", False),
        ]
        begun = DraftPiece(tool_call=part('{"path":', begins=True))
        written = await write_draft(session, claim, begun, offset=13)
        assert written.end_offset == 13 + len("c1\0read_file\0") + len('{"path":')
        assert await watch.next() == ("tool_call", part('{"path":', begins=True), False)
        grown = DraftPiece(tool_call=part('"é', begins=False))
        written = await write_draft(session, claim, grown, offset=written.end_offset)
        assert await watch.next() == ("tool_call", part('"é', begins=False), False)
    # Another replica knows nothing but the cursor. It gets the rest of each kind with the entry.
    block = call_block("c1", "read_file", '{"path":"é.txt"}')
    answer = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT)
    answer.content.add(thinking=message_pb2.Thinking(text="Hm. ", signature="s"))
    answer.content.add(text=message_pb2.Text(text="Yes. I read it."))
    answer.content.add(thinking=message_pb2.Thinking(text="Well. Now."))
    for call_id in ("c1", "c2"):
        made = message_pb2.ToolCall(
            tool_call_id=call_id, name="read_file", block_json=block.replace("c1", call_id)
        )
        answer.content.add(tool_call=made)
    await session.append([EntryBody(message=answer)], claim=claim)
    second = ToolCallPiece(
        tool_call_id="c2", name="read_file", arguments='{"path":"é.txt"}', begins_call=True
    )
    async with watching(session, watch.cursor) as again:
        assert await again.many(5) == [
            ("delta", " I read it.", False),
            ("thinking", " Now.", False),
            ("tool_call", part('.txt"}', begins=False), False),
            ("tool_call", second, False),
            ("entry", 2, True),
        ]


async def test_WatchTranscript__a_call_that_was_not_made_retracts_the_draft(session: Session) -> None:
    claim = await session.acquire(1)
    call = ToolCallPiece(tool_call_id="c1", name="read_file", begins_call=True)
    async with watching(session) as watch:
        assert await watch.next() == ("entry", 1, False)
        await write_draft(session, claim, "Yes.", DraftPiece(tool_call=call))
        assert await watch.many(2) == [("delta", "Yes.", True), ("tool_call", call, False)]
        await session.append([assistant("Yes.")], claim=claim)
        assert await watch.many(2) == [("draft_retracted",), ("entry", 2, False)]


@pytest.mark.parametrize(
    ("piece", "field"),
    [
        (
            DraftPiece(
                tool_call=ToolCallPiece(
                    tool_call_id="c1", name="mcp__mesh__sessions_spawn", arguments="{", begins_call=True
                )
            ),
            "pieces[1].tool_call.arguments",
        ),
        (
            DraftPiece(tool_call=ToolCallPiece(tool_call_id="c1", name="read_file")),
            "pieces[1].tool_call.arguments",
        ),
        (
            DraftPiece(tool_call=ToolCallPiece(name="read_file", begins_call=True)),
            "pieces[1].tool_call.tool_call_id",
        ),
        (DraftPiece(), "pieces[1].piece"),
        (DraftPiece(thinking=""), "pieces[1].thinking"),
    ],
)
async def test_WriteDraft__refuses_a_piece_that_says_nothing_or_shows_files(
    session: Session, superuser: Superuser, piece: DraftPiece, field: str
) -> None:
    claim = await session.acquire(1)
    with pytest.raises(MeshError) as error:
        await write_draft(session, claim, "Yes.", piece)
    assert error.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in error.value.violations] == [field]
    assert await kept_drafts(session, superuser) == []


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


async def kept_drafts(session: Session, superuser: Superuser) -> list[tuple[int, int, bytes]]:
    """Return epoch, number and text of each stored piece."""
    query = "select epoch, number, text from draft_pieces where session_id = %s order by 1, 2"
    return [*await (await superuser.execute(query, (session.session_id,))).fetchall()]


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
