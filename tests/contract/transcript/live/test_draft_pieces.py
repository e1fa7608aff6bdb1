"""Thinking and tool calls of a draft, beside its text."""

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece, ToolCallPiece
from spawnmesh_core.call_blocks import call_block
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant
from tests.support.transcript.drafts import write_draft
from tests.support.transcript.fixtures import Session, Superuser
from tests.support.transcript.live import kept_drafts, watching


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
