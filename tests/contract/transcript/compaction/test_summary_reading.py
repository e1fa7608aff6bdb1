"""Contexts that begin with a summary, and ExpandSummary, which reads its sources."""

import json
import re

from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import open_database

from tests.support.transcript.bodies import assistant, superseded, text_of, user
from tests.support.transcript.commands import Command
from tests.support.transcript.compaction import (
    Compacting,
    CompactionService,
    words,
)
from tests.support.transcript.counts import recount
from tests.support.transcript.fixtures import refused
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser, pages_touched


async def test_CompactAsWriter__the_newest_user_message_stays_although_it_is_summarized(
    compacting: Compacting,
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.session.append([user(words("task"))])
    for number in range(10):
        await compacting.session.append([assistant(words(f"step-{number}"))], claim=claim)
    await compacting.compact(claim)
    for stub in (False, True):
        await compacting.set_threshold(1 + stub, 0, stub_large_tool_payloads=stub)
        context = await compacting.context()
        said = [text_of(entry).split()[0] if text_of(entry) else "" for entry in context.entries[1:]]
        assert said == ["task", "step-6", "step-7", "step-8", "step-9"]
        assert (context.dropped_entry_count, list(context.dropped)) == (0, [])
        assert context.token_count == sum(entry.token_count for entry in context.entries)


async def test_AssembleContext__the_budget_includes_the_summary_and_its_sources_are_not_reported_as_dropped(
    compacting: Compacting,
) -> None:
    await compacting.set_threshold(1, 0, stub_large_tool_payloads=True)
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=6)
    compacting.peers.answers.append(words("gist"))
    summary = (await compacting.compact(claim)).summary
    await compacting.converse(claim, turns=4, name="late")
    for budget in (700, 500, 330):
        context = await compacting.context(budget)
        assert context.entries[0] == summary
        assert context.token_count <= budget
        kept = len(context.entries) - 1
        assert context.dropped_entry_count == 12 - kept > 0
        [dropped] = context.dropped
        assert (dropped.first_seq, dropped.entry_count) == (
            summary.body.compaction.sources.last_seq + 1,
            12 - kept,
        )
    context = await compacting.context(summary.token_count + 100)
    assert not any(entry.body.HasField("compaction") for entry in context.entries), "it would leave no room"
    assert context.dropped_entry_count == 20 - len(context.entries)


async def test_CompactAsWriter__reports_kept_tokens_without_superseded_entries(
    compacting: Compacting, superuser: Superuser
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=7)
    entries = await compacting.session.entries()
    first = (await compacting.compact(claim, tail=FreshTail(message_count=9))).summary.body.compaction
    assert first.first_kept_entry_id == entries[first.sources.last_seq].entry_id
    # A covered entry, one that will be covered, and two kept ones, one of them marked twice.
    marks = [superseded(entries[number].entry_id) for number in (2, -7, -4, -3, -4)]
    await compacting.session.append(marks, claim=claim)
    second = (await compacting.compact(claim)).summary
    told = second.body.compaction
    context = await compacting.context()
    assert (
        context.token_count == told.token_count_after == sum(entry.token_count for entry in context.entries)
    )
    assert told.first_kept_entry_id == context.entries[1].entry_id
    assert (context.superseded_entry_count, context.dropped_entry_count) == (2, 0)
    kept = sum(entry.token_count for entry in context.entries[1:])
    assert told.token_count_before == told.sources.token_count + kept
    assert await covered(superuser, compacting) == [
        sum(entry.token_count for entry in entries if entry.seq <= seq)
        for seq in (first.sources.last_seq, told.sources.last_seq)
    ]


async def test_CompactAsWriter__covered_tokens_follow_a_recount(
    compacting: Compacting, superuser: Superuser
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5, name="పరీక్ష వాక్యం")
    await compacting.set_threshold(1, 0, token_vocabulary="cl100k_base")

    async def count_again() -> None:
        assert (await recount(compacting.session)).recounted_entry_count == 10

    compacting.peers.on_generate = count_again
    sources = (await compacting.compact(claim)).summary.body.compaction.sources
    entries = await compacting.session.entries()
    assert await covered(superuser, compacting) == [
        sum(entry.token_count for entry in entries if entry.seq <= sources.last_seq)
    ]


async def covered(superuser: Superuser, compacting: Compacting) -> list[int]:
    """Return the covered tokens of each summary."""
    statement = "select covered_token_count from summaries where tenant_id = %s order by seq"
    return [row[0] async for row in await superuser.execute(statement, (compacting.session.tenant_id,))]


async def test_AssembleContext__superseded_entries_behind_a_summary_are_counted_and_covered_ones_are_not(
    compacting: Compacting,
) -> None:
    await compacting.set_threshold(1, 0, stub_large_tool_payloads=True)
    claim = await compacting.session.acquire(1)
    early = (await compacting.session.append([assistant(words("early"))], claim=claim)).entries[0]
    await compacting.converse(claim, turns=6)
    summary = (await compacting.compact(claim)).summary
    late = (await compacting.session.append([assistant(words("late"))], claim=claim)).entries[0]
    assert early.seq < summary.body.compaction.sources.last_seq < late.seq
    whole = await compacting.context()
    await compacting.session.append([superseded(early.entry_id)], claim=claim)
    context = await compacting.context()
    assert context.entries == whole.entries
    assert (context.superseded_entry_count, context.dropped_entry_count, list(context.dropped)) == (0, 0, [])
    await compacting.session.append([superseded(late.entry_id), superseded(late.entry_id)], claim=claim)
    context = await compacting.context()
    assert len(context.entries) == len(whole.entries) - 1
    assert (context.superseded_entry_count, context.dropped_entry_count) == (1, 0)


async def test_AssembleContext__costs_what_is_read_and_not_what_is_summarized(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    for _ in range(16):
        await compacting.session.append([assistant("a few words") for _ in range(250)], claim=claim)
    summary = (await compacting.compact(claim)).summary
    last_seq = summary.body.compaction.sources.last_seq
    assert last_seq == 3_997
    scan = {
        "tenant_id": compacting.session.tenant_id,
        "session_id": compacting.session.session_id,
        "after_seq": last_seq,
        "before_seq": summary.seq + 1,
        "row_count": 100_000,
    }
    statements = all_statements()
    async with (
        open_database(compacting.session.service.dsn.app, name="cost", max_connections=1) as database,
        database.transaction(compacting.session.tenant_id) as connection,
    ):
        await connection.execute(statements["begin_snapshot"])
        assert await pages_touched(connection, statements["scan_entries"], scan) < 20
    context = await compacting.context()
    assert [entry.seq for entry in context.entries] == [summary.seq, 3_998, 3_999, 4_000, 4_001]


async def test_AssembleContext__reports_when_a_compaction_is_due(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)

    async def is_due(budget: int = 100_000, **more: object) -> bool:
        return (await compacting.context(budget, **more)).compaction_due

    token_count = (await compacting.context()).token_count
    assert not await is_due(500), "by itself never, unless the tenant says so"
    await compacting.set_threshold(1, 50)
    assert not await is_due(2 * token_count + 2)
    assert await is_due(2 * token_count)
    assert await is_due(2 * token_count + 2, reserved_token_count=1)
    await compacting.set_threshold(2, 100)
    assert not await is_due(token_count + 1)
    assert await is_due(token_count - 1), "it does not fit"
    assert not await is_due(token_count - 1, fresh_tail=None), "all is fresh"
    await compacting.compact(claim)
    assert not await is_due(500), "what is left is fresh"
    await compacting.converse(claim, turns=3, name="late")
    assert await is_due(500)


async def test_ExpandSummary__pages_through_the_sources_and_along_the_chain(
    compacting: Compacting, compaction_service: CompactionService
) -> None:
    claim = await compacting.session.acquire(1)
    summaries = []
    for number in range(3):
        await compacting.converse(claim, turns=4, name=f"part-{number}")
        summaries.append((await compacting.compact(claim)).summary)
    stored = {entry.seq: entry for entry in await compacting.session.entries()}

    async def sources(entry_id: str, page_size: int) -> list[entry_pb.Entry]:
        found: list[entry_pb.Entry] = []
        tokens = {""}
        token = ""
        while True:
            page = await compacting.expand(entry_id, page_token=token, page_size=page_size)
            assert len(page.entries) <= page_size
            found += page.entries
            token = page.next_page_token
            if not token:
                return found
            assert token not in tokens
            tokens.add(token)

    seen: list[int] = []
    summary = summaries[-1]
    while True:
        pages = [await sources(summary.entry_id, page_size) for page_size in (1, 2, 100)]
        assert pages[0] == pages[1] == pages[2]
        own = [entry for entry in pages[0] if not entry.body.HasField("compaction")]
        assert own == [stored[entry.seq] for entry in own]
        told = summary.body.compaction.sources
        assert [own[0].seq >= told.first_seq, own[-1].seq, len(own)] == [
            True,
            told.last_seq,
            told.entry_count,
        ]
        seen = [*(entry.seq for entry in own), *seen]
        if not told.previous_entry_id:
            break
        assert pages[0][0] in summaries
        assert pages[0][0].entry_id == told.previous_entry_id
        summary = pages[0][0]
    assert (
        seen
        == sorted(seen)
        == [seq for seq, entry in stored.items() if entry.body.HasField("message") and seq <= seen[-1]]
    )
    with refused(Reason.NOT_FOUND):
        await compacting.expand(stored[2].entry_id)


async def test_ExpandSummary__runs_read_their_descendants_and_other_tenants_nothing(
    compacting: Compacting,
) -> None:
    child = Compacting(compacting.session.sibling(), compacting.peers)
    await child.session.create(child_of=compacting.session)
    claim = await child.session.acquire(1)
    await child.converse(claim, turns=5)
    summary = (await child.compact(claim)).summary
    parent = await compacting.session.acquire(1)
    assert (
        len((await child.expand(summary.entry_id, token=compacting.session.run_token(parent))).entries) == 6
    )
    for token in (
        compacting.session.service.session().client_token(),
        compacting.session.sibling().run_token(parent),
    ):
        with refused(Reason.NOT_FOUND):
            await child.expand(summary.entry_id, token=token)
    with refused(Reason.NOT_FOUND):
        await compacting.expand(summary.entry_id)


async def test_CreateTranscript__a_fork_copies_the_sources_and_no_summary(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    await compacting.compact(claim)
    fork = Compacting(compacting.session.sibling(), compacting.peers)
    await fork.session.create(fork_of=compacting.session)
    assert len((await fork.context()).entries) == 10


async def test_DeleteTranscript__deletes_summaries(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    summary = (await compacting.compact(claim)).summary
    await compacting.session.delete()
    with refused(Reason.NOT_FOUND):
        await compacting.expand(summary.entry_id)


async def test_the_command_compacts_and_expands(compacting: Compacting, command: Command) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.session.append(
        [assistant(words(f"said-{number}", 1_000)) for number in range(40)], claim=claim
    )
    session_id = compacting.session.session_id
    status, _, err = await command(compacting.session, "compact", session_id)
    assert status == 1
    assert "CONFLICT" in err
    await compacting.session.release(claim)
    status, out, _ = await command(
        compacting.session, "compact", session_id, "--model", "a/one", "--model", "b/two"
    )
    assert status == 0
    assert "The gist." in out
    assert re.search(
        r"  (\d+) entries up to \d+, the last \1 with \d+ tokens as [1-9]\d*  normal  scripted/one", out
    )
    assert [compacting.peers.prompts[0].model, *compacting.peers.prompts[0].fallbacks.models] == [
        "a/one",
        "b/two",
    ]
    entry_id = out.split()[0]
    status, out, err = await command(compacting.session, "expand", session_id, entry_id, "--json")
    assert (status, err) == (0, "")
    assert [json.loads(line)["seq"] for line in out.splitlines()][:3] == ["2", "3", "4"]
    assert "said-0 " in (await command(compacting.session, "expand", session_id, entry_id))[1]
    status, out, _ = await command(compacting.session, "compact", session_id)
    assert (status, "nothing to summarize" in out) == (0, True)
    await compacting.session.append([user(words("late", 20_000))])
    claim = await compacting.session.acquire(2)
    await compacting.session.append([assistant("end"), assistant("end")], claim=claim)
    await compacting.session.release(claim)
    compacting.peers.decision.CopyFrom(
        hook_pb.CompactionDecision(keep_whole=hook_pb.KeepWhole(reason="Audit."))
    )
    status, _, err = await command(compacting.session, "compact", session_id)
    assert (status, err.strip()) == (1, "error: refused by keeper: Audit.")
