"""AssembleContext: the entries that a model reads."""

from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import open_database

from tests.support.transcript.bodies import assistant, note, result, superseded, text_of, user
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser, pages_touched


def _read(context: pb.AssembleContextResponse) -> list[str]:
    assert context.token_count == sum(entry.token_count for entry in context.entries)
    return [text_of(entry) for entry in context.entries]


async def test_AssembleContext__a_short_transcript_is_returned_as_it_was_appended(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([note("files"), user("task")])
    await session.append([assistant("a", "c1"), result("c1", "r1"), assistant("b")], claim=claim)
    context = await session.context()
    assert _read(context) == ["files", "task", "a", "r1", "b"]
    assert list(context.entries) == (await session.entries())[1:]
    assert (context.dropped_entry_count, context.superseded_entry_count, context.synthetic_result_count) == (
        0,
        0,
        0,
    )


async def test_AssembleContext__an_empty_transcript_gives_an_empty_context(session: Session) -> None:
    assert _read(await session.context()) == []


async def test_AssembleContext__results_are_put_behind_their_calls(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("task")])
    await session.append([assistant("a", "c1", "c2")], claim=claim)
    await session.append([user("meanwhile")])
    await session.append([result(" c2 ", "r2"), result("c2", "again"), result("c9", "orphan")], claim=claim)
    context = await session.context()
    texts = _read(context)
    assert [texts[index] for index in (0, 1, 3, 4)] == ["task", "a", "r2", "meanwhile"]
    made_up = context.entries[2]
    assert (made_up.entry_id, made_up.seq) == ("", 0)
    assert made_up.body.message.role == content_pb.ROLE_TOOL_RESULT
    assert (made_up.body.message.tool_call_id, made_up.body.message.tool_name) == ("c1", "read")
    assert made_up.body.message.is_error
    assert made_up.token_count > 10
    assert (context.synthetic_result_count, context.dropped_entry_count) == (1, 0)


async def test_AssembleContext__a_real_result_takes_precedence_over_a_synthetic_one(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([assistant("a", "c1")], claim=claim)
    made_up = (await session.context()).entries[1].body
    await session.append([made_up], claim=claim)
    assert (await session.context()).synthetic_result_count == 0
    await session.append([result("c1", "real")], claim=claim)
    assert _read(await session.context()) == ["a", "real"]


async def test_AssembleContext__superseded_drafts_are_left_out(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("task")])
    drafts = await session.append(
        [assistant("draft", "c1"), result("c1", "r"), assistant("draft 2")], claim=claim
    )
    for entry in (drafts.entries[0], drafts.entries[2], drafts.entries[0]):
        await session.append([superseded(entry.entry_id)], claim=claim)
    await session.append([assistant("answer")], claim=claim)
    context = await session.context()
    assert _read(context) == ["task", "answer"]
    assert (context.superseded_entry_count, context.dropped_entry_count) == (2, 0)
    assert [text_of(entry) for entry in (await session.entries(after_seq=1, page_size=2))] == [
        "task",
        "draft",
    ]


async def test_AssembleContext__the_newest_that_fit_and_the_newest_user_message(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("old " * 10), user("task " * 10)])
    await session.append(
        [assistant(f"{number} " + "word " * 20, f"c{number}") for number in range(5)], claim=claim
    )
    await session.append([result(f"c{number}", "res " * 20) for number in range(5)], claim=claim)
    counts = {entry.seq: entry.token_count for entry in await session.entries()}
    group = counts[8] + counts[13]
    context = await session.context(counts[3] + 2 * group)
    assert [entry.seq for entry in context.entries] == [3, 7, 12, 8, 13]
    assert context.token_count == counts[3] + 2 * group
    assert context.dropped_entry_count == 7
    context = await session.context(counts[3] + 2 * group - 1)
    assert [entry.seq for entry in context.entries] == [3, 8, 13]
    context = await session.context(1)
    assert [entry.seq for entry in context.entries] == [3, 8, 13]
    assert (context.token_count, context.dropped_entry_count) == (counts[3] + group, 9)


async def test_AssembleContext__a_superseded_user_message_is_not_the_newest(session: Session) -> None:
    claim = await session.acquire(1)
    said = await session.append([user("first"), user("withdrawn")])
    await session.append([superseded(said.entries[1].entry_id)], claim=claim)
    assert _read(await session.context(1)) == ["first"]


async def test_AssembleContext__scans_on_if_the_first_scan_was_too_short(session: Session) -> None:
    """Old entries have few tokens and new ones have many, so the mean misleads the first scan."""
    claim = await session.acquire(1)
    for _ in range(4):
        await session.append([user("a") for _ in range(250)])
    drafts = await session.append([assistant("draft " * 500) for _ in range(200)], claim=claim)
    await session.append([superseded(entry.entry_id) for entry in drafts.entries], claim=claim)
    context = await session.context(600)
    assert len(context.entries) == 600
    assert [entry.seq for entry in context.entries] == list(range(402, 1002))
    assert (context.dropped_entry_count, context.superseded_entry_count) == (400, 200)


async def test_AssembleContext__reports_how_much_did_not_fit(session: Session) -> None:
    await session.append([user("word " * 50) for _ in range(250)])
    context = await session.context(500)
    assert len(context.entries) == 9
    assert context.dropped_entry_count == 241


async def test_AssembleContext__thinking_comes_back_untouched(session: Session) -> None:
    claim = await session.acquire(1)
    thinking = content_pb.ContentBlock(
        thinking=content_pb.Thinking(text="  sessions_spawn \n", signature="sig==")
    )
    body = entry_pb2.EntryBody(message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[thinking]))
    await session.append([body], claim=claim)
    assert (await session.context()).entries[0].body == body


async def test_AssembleContext__unknown_session(service: Service) -> None:
    with refused(Reason.NOT_FOUND):
        await service.session().context()


@pytest.mark.parametrize("budget", [0, -1])
async def test_AssembleContext__a_budget_is_positive(session: Session, budget: int) -> None:
    with refused(Reason.INVALID_REQUEST):
        await session.context(budget)


async def test_statements_cost_what_they_read_and_not_the_length_of_the_transcript(
    session: Session, superuser: Superuser
) -> None:
    """Also if the planner's statistics are of short transcripts, and with a generic plan."""
    await superuser.execute("analyze entries")
    claim = await session.acquire(1)
    await session.append([user("task")])
    for _ in range(16):
        await session.append([assistant("word " * 100) for _ in range(250)], claim=claim)
    key = {"tenant_id": session.tenant_id, "session_id": session.session_id}
    page = {**key, "kinds": None, "roles": None, "page_size": 100, "max_bytes": 2**22}
    reads: dict[str, dict[str, Any]] = {
        "list_entries_after": {**page, "seq": 3000, "end_seq": 8000},
        "list_entries_before": {**page, "seq": 3000, "end_seq": 1},
        "read_newest_user_turn": key,
        "scan_entries": {**key, "after_seq": 500, "before_seq": 4003, "row_count": 100},
        "read_entries": {**key, "first_seqs": [3000, 3900], "last_seqs": [3040, 3950]},
        "list_chain_entries": {**key, "first_seq": 3000, "page_size": 100, "max_bytes": 2**22},
        "read_chain_hash": {**key, "seq": 3000},
        "read_newest_summary": key,
        "read_kept": {**key, "after_seq": 300},
        "scan_sources": {**key, "after_seq": 3000, "row_count": 100},
        "list_sources": {
            **key,
            "after_seq": 3000,
            "last_source_seq": 4001,
            "marked_before_seq": 4002,
            "page_size": 100,
            "max_bytes": 2**22,
        },
    }
    statements = all_statements()
    async with open_database(session.service.dsn.app, name="cost", max_connections=1) as database:
        for _ in range(8):
            async with database.transaction(session.tenant_id) as connection:
                await connection.execute(statements["begin_snapshot"])
                touched = {
                    name: await pages_touched(connection, statements[name], reads[name]) for name in reads
                }
            assert max(touched.values()) < 100, touched
