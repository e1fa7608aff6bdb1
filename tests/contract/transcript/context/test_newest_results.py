"""AssembleContext with newest results that do not fit the budget: each is cut to a fair share."""

import asyncio
import re

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import file_service_pb2 as file_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.bodies import assistant, result, text_block, text_of, user
from tests.support.transcript.fixtures import Session
from tests.support.transcript.tier import Tiered, answering, image_block, long_text

KIB = 1024
CUT = re.compile(r"\[Cut: ([\d,]+) of ([\d,]+) bytes of this result are shown\. To read the rest, (.+)\.\]")
CALL_AGAIN = "call the tool again for a smaller part"


async def _page(tiered: Tiered, file_id: str, offset: int) -> bytes:
    described = await tiered.describe(
        file_id, expand=True, bytes=file_pb.ByteRange(offset=offset, length=500 * KIB)
    )
    return described.content.data


def _texts(entry: entry_pb.Entry) -> list[str]:
    return [block.text.text for block in entry.body.message.content]


def _shown(entry: entry_pb.Entry) -> str:
    """Return the text in front of the note."""
    *shown, note = _texts(entry)
    assert CUT.fullmatch(note), note
    return "".join(shown)


def _checked(context: pb.AssembleContextResponse, budget: int) -> pb.AssembleContextResponse:
    """Return a context that is within its budget and names each result that is cut."""
    assert context.token_count == sum(entry.token_count for entry in context.entries) <= budget
    cut = [entry for entry in context.entries if CUT.search("".join(_texts(entry)))]
    assert [(one.entry_id, one.seq) for one in context.cut] == [(entry.entry_id, entry.seq) for entry in cut]
    for one, entry in zip(context.cut, cut, strict=True):
        assert one.full_token_count > entry.token_count
        assert one.shown_bytes == sum(len(text.encode()) for text in _texts(entry)[:-1])
        found = CUT.fullmatch(_texts(entry)[-1])
        assert found
        assert found[1] == f"{one.shown_bytes:,}"
        assert found[2] == f"{one.size_bytes:,}"
    return context


async def test_AssembleContext__eight_files_that_were_just_read_stay_in_the_context(
    session: Session,
) -> None:
    texts = [long_text(f"w{number}x", 64 * KIB) for number in range(8)]
    calls = [f"c{number}" for number in range(8)]
    claim = await session.acquire(1)
    await session.append([assistant("older " * 1_000)], claim=claim)
    await session.append([user("read them")])
    results = [result(call, text) for call, text in zip(calls, texts, strict=True)]
    await session.append([assistant("", *calls), *results], claim=claim)

    context = _checked(await session.context(100_000), 100_000)

    question, head, *read = context.entries
    assert (text_of(question), len(head.body.message.content)) == ("read them", 9)
    assert [entry.body.message.tool_call_id for entry in read] == calls
    for entry, text in zip(read, texts, strict=True):
        assert text.startswith(_shown(entry))
        assert len(_shown(entry)) > 18 * KIB
        assert _texts(entry)[-1].endswith(f"{CALL_AGAIN}.]")
    shares = [entry.token_count for entry in read]
    assert max(shares) - min(shares) < 50
    assert context.token_count > 99_000
    assert context.dropped_entry_count == 1


async def test_AssembleContext__short_results_leave_their_share_to_long_ones(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    texts = {"a": "short", "b": long_text("b", 40 * KIB), "c": "also short", "d": long_text("d", 40 * KIB)}
    results = [result(call, text) for call, text in texts.items()]
    await session.append([assistant("", *texts), *results], claim=claim)

    context = _checked(await session.context(8_000), 8_000)

    a, b, c, d = context.entries[2:]
    assert (text_of(a), text_of(c)) == ("short", "also short")
    assert [one.seq for one in context.cut] == [b.seq, d.seq]
    assert abs(b.token_count - d.token_count) < 50
    assert context.token_count > 7_800


async def test_AssembleContext__results_that_fit_are_complete(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    appended = await session.append(
        [assistant("", "c"), result("c", text := long_text("a", 20 * KIB))], claim=claim
    )
    full = await session.context(1_000_000)
    exact = _checked(await session.context(full.token_count), full.token_count)
    assert exact == full
    assert text_of(full.entries[-1]) == text

    one_less = _checked(await session.context(full.token_count - 1), full.token_count - 1)
    assert [one.entry_id for one in one_less.cut] == [appended.entries[1].entry_id]
    assert text.startswith(_shown(one_less.entries[-1]))


async def test_AssembleContext__only_the_newest_results_are_cut(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    for call in ("old", "new"):
        await session.append([assistant("", call), result(call, long_text(call, 40 * KIB))], claim=claim)
    context = _checked(await session.context(5_000), 5_000)
    assert [entry.body.message.tool_call_id for entry in context.entries[2:]] == ["new"]
    assert context.dropped_entry_count == 2


async def test_AssembleContext__results_that_were_answered_are_cut_as_well(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    await session.append([assistant("", "c"), result("c", long_text("a", 40 * KIB))], claim=claim)
    await session.append([assistant("it says a")], claim=claim)
    await session.append([user("and then?")])
    context = _checked(await session.context(5_000), 5_000)
    assert [text_of(entry)[:9] for entry in context.entries if entry.body.message.role != 3][-2:] == [
        "it says a",
        "and then?",
    ]
    assert len(context.cut) == 1


@pytest.mark.parametrize("budget", [1, 300])
async def test_AssembleContext__without_budget_each_result_has_its_note(
    session: Session, budget: int
) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    results = [result(call, long_text(call, 40 * KIB)) for call in ("a", "b")]
    await session.append([assistant("", "a", "b"), *results], claim=claim)
    context = await session.context(budget)
    assert [entry.body.message.tool_call_id for entry in context.entries[2:]] == ["a", "b"]
    for entry in context.entries[2:]:
        assert len(_shown(entry)) > 100
        assert entry.token_count <= 256


async def test_AssembleContext__a_cut_text_ends_behind_a_line_and_between_characters(
    session: Session,
) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    lines = "".join(f"{number}: grüße 你好 🙂\n" for number in range(4_000))
    unbroken = "🙂你ß" * 20_000
    results = [result("lines", lines), result("unbroken", unbroken)]
    await session.append([assistant("", "lines", "unbroken"), *results], claim=claim)
    for budget in range(3_000, 3_010):
        context = _checked(await session.context(budget), budget)
        first, second = (_shown(entry) for entry in context.entries[2:])
        assert lines.startswith(first)
        assert first.endswith("\n")
        assert unbroken.startswith(second)
        assert second


async def test_AssembleContext__an_estimated_budget_is_kept(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    results = [result(call, long_text(call, 40 * KIB)) for call in ("a", "b", "c")]
    await session.append([assistant("", "a", "b", "c"), *results], claim=claim)
    for model in ("anthropic/claude-sonnet-4", "google/gemini-3", "openai/gpt-4", "who/knows"):
        request = pb.AssembleContextRequest(session_id=session.session_id, token_budget=9_000, model=model)
        with use_token(session.client_token()):
            context = await session.service.peer.unary(
                session.service.stub.AssembleContext, request, timeout_seconds=60
            )
        _checked(context, 9_000)
        assert context.token_count > 8_000, model
        assert len(context.cut) == 3


async def test_AssembleContext__blocks_behind_the_cut_are_left_out(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("look")])
    message = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT,
        tool_call_id="c",
        tool_name="look",
        content=[text_block("first"), text_block(long_text("a", 40 * KIB)), image_block(b"\x89PNG" * 64)],
    )
    await session.append([assistant("", "c"), entry_pb.EntryBody(message=message)], claim=claim)
    context = _checked(await session.context(3_000), 3_000)
    shown = context.entries[-1]
    assert _texts(shown)[0] == "first"
    assert len(shown.body.message.content) == 3
    assert context.cut[0].size_bytes == 5 + len(long_text("a", 40 * KIB)) + 256


async def test_AssembleContext__more_bytes_than_a_message_takes_are_cut(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("read")])
    await session.append([assistant("", "a", "b", "c")], claim=claim)
    for call in ("a", "b", "c"):
        seen = result(call, f"image {call}")
        seen.message.content.append(image_block(b"\x89PNG" * (KIB * KIB)))
        await session.append([seen], claim=claim)
    context = _checked(await session.context(100_000_000), 100_000_000)
    assert [_shown(entry) for entry in context.entries[2:]] == ["image a", "image b", "image c"]
    assert {one.size_bytes for one in context.cut} == {4 * KIB * KIB + 7}
    assert context.ByteSize() < 11 * KIB * KIB


async def test_AssembleContext__the_rest_of_a_cut_result_is_read_from_its_file(tiered: Tiered) -> None:
    session = tiered.session
    claim = await session.acquire(1)
    text = long_text("word", 500 * KIB)
    await session.append([user("read it")])
    await session.append([assistant("", "c"), answering("c", text)], claim=claim)

    async def stored() -> pb.AssembleContextResponse:
        while not (context := await session.context(50_000)).cut[0].file_ids:
            await asyncio.sleep(0.05)
        return context

    context = _checked(await asyncio.wait_for(stored(), 60), 50_000)
    shown = _shown(context.entries[-1])
    [file_id] = context.cut[0].file_ids
    note = _texts(context.entries[-1])[-1]
    assert f"call transcript_describe with file_id {file_id} and offset {len(shown)}" in note
    rest = await _page(tiered, file_id, len(shown))
    assert shown + rest.decode() == text
