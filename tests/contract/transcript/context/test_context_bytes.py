"""A context and a fork fit in one message of the transport, however few tokens large bodies
count."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.context_pb2 import DROP_CAUSE_BUDGET, DroppedEntries
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.domain.selection import MAX_CONTEXT_BYTES
from spawnmesh_transcript.operations.session_files.line_reader import MAX_BODY_BYTES

from tests.support.transcript.bodies import assistant, bash, extension, note, text_of, user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import NO_TAIL, Tiered, calling, image_block
from tests.support.transcript.tier_sessions import APPLY, TierSession, dropped, with_image

MESSAGE_BYTES = 16 * 1024 * 1024
SIZE = 2_000_000
FITTING = MAX_CONTEXT_BYTES // SIZE


def _picture(number: int, size: int = SIZE) -> bytes:
    return hashlib.shake_128(str(number).encode()).digest(size)


async def _look(session: Session, claim: pb.WriterClaim, count: int) -> None:
    """Append this number of images, each with an answer."""
    for number in range(count):
        await session.append([with_image(f"look {number}", _picture(number))])
        await session.append([assistant(f"seen {number}")], claim=claim)


def _fits(context: pb.AssembleContextResponse) -> bool:
    return MAX_CONTEXT_BYTES - 2 * SIZE < context.ByteSize() <= MAX_CONTEXT_BYTES


async def test_AssembleContext__images_over_the_size_of_a_message_do_not_fit(session: Session) -> None:
    claim = await session.acquire(1)
    await session.prepare_tenant(2, compact_at_percent=99)
    await _look(session, claim, 9)
    context = await session.context(200_000)
    assert _fits(context)
    assert [text_of(entry) for entry in context.entries][-2 * FITTING :] == [
        said for number in range(9 - FITTING, 9) for said in (f"look {number}", f"seen {number}")
    ]
    assert context.dropped_entry_count == 18 - len(context.entries)
    assert context.token_count < 20_000
    assert not context.compaction_due, "what could be summarized is fresh"
    assert (await session.context(token_budget=20_000_000)).entries == context.entries
    await session.append([assistant("word " * 30_000)], claim=claim)
    assert (await session.context(200_000)).compaction_due, "since something did not fit"


async def test_AssembleContext__the_tier_reports_what_did_not_fit(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await _look(tiered.session, claim, 9)
    context = await tiered.context()
    assert _fits(context)
    begin = context.entries[0].seq
    gap = DroppedEntries(first_seq=1, last_seq=begin - 1, entry_count=begin - 2, cause=DROP_CAUSE_BUDGET)
    assert list(context.dropped) == [gap]


async def test_AssembleContext__a_reference_counts_its_own_bytes(tiered: Tiered) -> None:
    """It does not count the bytes of the payload that it replaces."""
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("look at all")])
    for number in range(2 * FITTING):
        answer = content_pb.Message(
            role=content_pb.ROLE_TOOL_RESULT,
            tool_call_id=f"c{number}",
            tool_name="look",
            content=[image_block(_picture(number))],
        )
        bodies = [calling(f"c{number}", "look", {}), entry_pb2.EntryBody(message=answer)]
        await tiered.session.append(bodies, claim=claim)
    await tiered.session.append([assistant("seen")], claim=claim)
    async with asyncio.timeout(60):
        while len((context := await tiered.context(tail=NO_TAIL)).stubbed) < 2 * FITTING:
            await asyncio.sleep(0.05)
    assert (context.dropped_entry_count, len(context.entries)) == (0, 2 + 4 * FITTING)
    assert context.ByteSize() < 50_000
    fresh = await tiered.context()
    assert _fits(fresh)
    assert fresh.dropped_entry_count > 0


async def test_AssembleContext__an_externalized_entry_counts_its_complete_bytes(
    tier_session: TierSession, superuser: Superuser
) -> None:
    claim = await tier_session.session.acquire(1)
    await _look(tier_session.session, claim, 9)
    await tier_session.session.append([assistant("word " * 30_000)], claim=claim)
    before = await tier_session.context(200_000)
    async with asyncio.timeout(60):
        while len(await dropped(superuser, tier_session)) < 9:
            await tier_session.tier(APPLY)
    assert await tier_session.context(200_000) == before
    assert _fits(before)
    await tier_session.session.append([with_image("once more", _picture(9))])
    assert text_of((await tier_session.context(200_000)).entries[-1]) == "once more"


async def test_AssembleContext__a_user_message_that_fills_the_context_stands_alone(session: Session) -> None:
    """Up to the limit of the transport; the next message is not affected."""
    claim = await session.acquire(1)
    await _look(session, claim, 1)
    await session.append([with_image("large", _picture(1, MAX_BODY_BYTES - 200))])
    await session.append([assistant("I see")], claim=claim)
    context = await session.context()
    assert [text_of(entry) for entry in context.entries] == ["large"]
    assert (context.dropped_entry_count, context.token_count < 2_000) == (3, True)
    await session.append([user("go on")])
    context = await session.context()
    assert [text_of(entry) for entry in context.entries] == ["I see", "go on"]
    assert context.dropped_entry_count == 3


async def test_AppendEntries__an_entry_too_large_for_an_answer_is_refused(session: Session) -> None:
    """An answer has more fields of an entry than an append."""
    request = pb.AppendEntriesRequest(session_id=session.session_id, request_id=secrets.token_hex(8))
    request.entries.append(with_image("", b""))
    image = request.entries[0].message.content[1].image
    image.data = _picture(0, MESSAGE_BYTES - request.ByteSize() - 20)
    assert MESSAGE_BYTES - 20 < request.ByteSize() <= MESSAGE_BYTES
    peer = session.service.peer
    with use_token(session.service_token()), refused(Reason.INVALID_REQUEST):
        await peer.unary(session.service.stub.AppendEntries, request, timeout_seconds=60)


async def test_CreateTranscript__a_fork_copies_no_more_than_a_context_has(session: Session) -> None:
    claim = await session.acquire(1)
    await _look(session, claim, 9)
    child = session.sibling()
    head = await child.create(fork_of=session, max_token_count=200_000)
    copies = [entry.body for entry in (await child.context(200_000)).entries]
    assert copies == [entry.body for entry in (await session.context(200_000)).entries]
    assert head.seq == 1 + len(copies) < 18


@pytest.mark.parametrize("body", [user, note, assistant, bash, extension])
async def test_AssembleContext__white_space_of_few_tokens_counts_all_its_bytes(
    session: Session, body: Callable[[str], entry_pb2.EntryBody]
) -> None:
    """In an entry of any writer."""
    claim = await session.acquire(1)
    said = [body(f"{number} " + " " * 60_000) for number in range(220)]
    await session.append(said, claim=claim)
    context = await session.context(1_000_000)
    assert MAX_CONTEXT_BYTES - 100_000 < context.ByteSize() <= MAX_CONTEXT_BYTES
    assert [entry.body for entry in context.entries] == said[-len(context.entries) :]
    assert context.dropped_entry_count == 220 - len(context.entries)
    assert context.token_count < 200_000
