"""ImportTranscript: session files of coding agents, by the contexts that are assembled of them."""

from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh.transcript.v1 import compaction_service_pb2 as compaction_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.bodies import user
from tests.support.transcript.dialects import (
    CLAUDE,
    CLAUDE_NEW,
    CLAUDE_OLD,
    CODEX_META,
    FILES,
    PI_HEADER,
    PNG,
    claude,
    claude_call,
    claude_result,
    codex,
    codex_said,
    file_of,
    pi,
    pi_said,
)
from tests.support.transcript.files import exported, go_on, pieces, send
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.searching import search
from tests.support.transcript.tables import Superuser, rows_of


def described(entry: entry_pb.Entry) -> str:
    """Return what a model reads of an entry, in one line."""
    body = entry.body
    if body.HasField("compaction"):
        return f"summary: {body.compaction.summary}"
    role = content_pb.Role.Name(body.message.role).removeprefix("ROLE_").lower()
    return f"{role}: " + " ".join(map(_described_block, body.message.content))


def _described_block(block: content_pb.ContentBlock) -> str:
    match block.WhichOneof("block"):
        case "text":
            return block.text.text
        case "thinking":
            return f"({block.thinking.text})"
        case "tool_call":
            return f"{block.tool_call.name}:{block.tool_call.tool_call_id}"
        case _:
            assert block.image == content_pb.Image(mime_type="image/png", data=PNG)
            return "image"


async def context_of(session: Session) -> list[str]:
    return [described(entry) for entry in (await session.context()).entries]


PI_CONTEXT = [
    "summary: what was done",
    "user: kept task",
    "assistant: read:t1",
    "tool_result: first result image",
    "assistant: done",
]
CONTEXTS = {
    "CLAUDE_CODE": [
        "summary: what was done",
        "user: look image",
        "assistant: (hm)",
        "assistant: Read:t1",
        "tool_result: first result",
        "assistant: Read:t2",
        "tool_result: second image",
        "assistant: done",
    ],
    "CODEX": [
        "summary: old task é\n\nSummary: what was done",
        "user: look image",
        "assistant: (hm)",
        "assistant: shell:t1",
        "tool_result: first result",
        "assistant: apply_patch:t2",
        "tool_result: second",
        "assistant: done",
    ],
    "CODEX_BARE": ["user: task", "assistant: shell:t1", "tool_result: result", "assistant: done"],
    "PI": PI_CONTEXT,
    "PI_V1": PI_CONTEXT,
    "OPENCLAW": [*PI_CONTEXT, "user: thanks"],
}


@pytest.mark.parametrize("name", sorted(CONTEXTS))
async def test_ImportTranscript__contexts_have_the_messages_of_every_dialect(
    service: Service, name: str
) -> None:
    fresh = service.session()
    data = file_of(FILES[name]).removesuffix(b"\n")
    answer = await send(fresh, data, chunk_bytes=300)
    assert answer.dialect == pb.SessionFileDialect.Value(f"SESSION_FILE_DIALECT_{name.removesuffix('_BARE')}")
    assert (answer.line_count, answer.durable_bytes) == (len(FILES[name]), len(data))
    context = await fresh.context()
    assert [described(entry) for entry in context.entries] == CONTEXTS[name]
    assert (context.synthetic_result_count, context.dropped_entry_count) == (0, 0)
    assert await exported(fresh) == data
    entries = await fresh.entries()
    assert answer.entry_count == sum(entry.body.WhichOneof("kind") != "label" for entry in entries)
    for seq in range(1, len(entries)):
        out = [piece async for piece in pieces(fresh, after_seq=seq)]
        assert data.endswith(b"".join(piece.data for piece in out))


async def test_ImportTranscript__an_import_resumes_within_a_file_of_any_dialect(service: Service) -> None:
    for name in ("CLAUDE_CODE", "CODEX", "PI_V1"):
        fresh = service.session()
        data = file_of(FILES[name])
        for end in range(700, len(data), 1500):
            durable = (await send(fresh, b"", finish=False)).durable_bytes
            await send(fresh, data[:end], finish=False, chunk_bytes=5000)
            assert durable <= (await send(fresh, b"", finish=False)).durable_bytes <= end
        assert (await go_on(fresh, data)).state == pb.IMPORT_STATE_COMPLETE
        assert await context_of(fresh) == CONTEXTS[name]
        assert await exported(fresh) == data


async def test_ImportTranscript__a_side_chain_is_in_no_context_and_is_searched_on_request(
    service: Service,
) -> None:
    fresh = service.session()
    await send(fresh, file_of(CLAUDE))
    assert not any("side" in line for line in await context_of(fresh))
    assert (await search(fresh, words="side")).hits == []
    assert len((await search(fresh, words="side", with_superseded=True)).hits) == 2
    assert len((await search(fresh, words="old")).hits) == 2, "what a summary replaced is found"
    assert "user: side task" in [described(entry) for entry in await fresh.entries()]


async def test_ExpandSummary__returns_what_an_imported_summary_replaced(service: Service) -> None:
    fresh = service.session()
    await send(fresh, file_of(CLAUDE))
    summary = (await fresh.context()).entries[0]
    assert summary.token_count > 0
    request = compaction_pb.ExpandSummaryRequest(session_id=fresh.session_id, entry_id=summary.entry_id)
    peer = service.peer
    with use_token(fresh.client_token()):
        answer = await peer.unary(
            CompactionServiceStub(peer.channel).ExpandSummary, request, timeout_seconds=60
        )
    assert [described(entry) for entry in answer.entries] == ["user: old task é", "assistant: old answer"]
    assert not answer.next_page_token


async def test_AssembleContext__has_the_newest_summary_on_the_branch_of_the_file(service: Service) -> None:
    fresh = service.session()
    other_branch = {
        **pi("compaction", 5, summary="of another branch", firstKeptEntryId="e3"),
        "parentId": "e3",
    }
    lines = [
        PI_HEADER,
        pi_said(1, "user", "first"),
        pi_said(2, "assistant", "second"),
        pi("compaction", 3, summary="older", firstKeptEntryId="e2"),
        pi("compaction", 4, summary="of the branch", firstKeptEntryId="nowhere"),
        other_branch,
        {**pi_said(6, "user", "goes on"), "parentId": "e4"},
    ]
    await send(fresh, file_of(lines))
    assert await context_of(fresh) == ["summary: of the branch", "user: goes on"]
    own = service.session()
    await send(own, file_of([{**PI_HEADER, "id": own.session_id}, *lines[1:4]]))
    assert await context_of(own) == ["user: first", "assistant: second"], "an export of this service"


async def test_AssembleContext__mends_calls_without_results_in_every_dialect(service: Service) -> None:
    files: list[list[Any]] = [
        [*CLAUDE_OLD, claude_call("a2", "a1", "t1"), claude("user", "u2", "a2", "go on")],
        [CODEX_META, codex("response_item", type="function_call", name="s", arguments="{}", call_id="t1")],
    ]
    for lines in files:
        fresh = service.session()
        await send(fresh, file_of([*lines]))
        assert (await fresh.context()).synthetic_result_count == 1
    orphan = service.session()
    await send(orphan, file_of([*CLAUDE_OLD, claude_result("r", "a1", "t9", "of no call")]))
    assert await context_of(orphan) == ["user: old task é", "assistant: old answer"]


async def test_ImportTranscript__a_file_of_no_dialect_is_refused_and_nothing_is_stored(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    with pytest.raises(MeshError) as refusal:
        await send(fresh, file_of([{"type": "novel", "a": 1}, *CLAUDE]))
    assert refusal.value.reason is Reason.IMPORT_MALFORMED
    assert 'its type is "novel"' in str(refusal.value)
    assert "Claude Code and Codex" in str(refusal.value)
    for lines in (CLAUDE, FILES["CODEX"], FILES["PI_V1"]):
        with refused(Reason.IMPORT_MALFORMED) as facts:
            await send(fresh, file_of([*lines[:5], "{", *lines[5:]]), chunk_bytes=500)
        assert facts["lines"] == "6"
    assert await rows_of(superuser, fresh.tenant_id) == {"tenants": 1, "tenant_work": 1}


async def test_ImportTranscript__a_line_that_an_earlier_batch_has_is_kept_outside_of_contexts(
    service: Service,
) -> None:
    fresh = service.session()
    answer = claude("assistant", "a9", "r2", [{"type": "text", "text": "after"}], message={"model": "m"})
    data = file_of([*CLAUDE_NEW, CLAUDE_NEW[5], *CLAUDE_NEW[:2], answer])
    half = len(file_of(CLAUDE_NEW))
    await send(fresh, data[:half], finish=False)
    assert (await go_on(fresh, data)).state == pb.IMPORT_STATE_COMPLETE
    assert await context_of(fresh) == [*CONTEXTS["CLAUDE_CODE"][1:], "assistant: after"]
    assert await exported(fresh) == data


async def test_ExportTranscript__an_entry_appended_after_an_unterminated_line_has_a_line_of_its_own(
    service: Service,
) -> None:
    fresh = service.session()
    data = file_of([CODEX_META, codex_said("user", "task")]).removesuffix(b"\n")
    await send(fresh, data)
    await fresh.append([user("more")])
    out = await exported(fresh)
    assert out.startswith(data + b"\n{")
    assert out.endswith(b"}\n")
    head = (await fresh.entries())[-2].seq
    assert data + await exported(fresh, after_seq=head) == out
