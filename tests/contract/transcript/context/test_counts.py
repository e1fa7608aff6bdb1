"""Counts by the tenant's vocabulary, contexts in the tokens of the reading model, and recounts."""

import asyncio
from collections.abc import Sequence

import pytest
from psycopg import AsyncConnection
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.tokens import body_token_count, count_tokens

from tests.support.transcript.bodies import assistant, note, result, user
from tests.support.transcript.compaction import Compacting
from tests.support.transcript.counts import CL100K, O200K, TEXT, recount, say, set_vocabulary
from tests.support.transcript.fixtures import Session, refused, waits_for
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import NO_TAIL, Tiered, long_text


async def context(
    session: Session, token_budget: int = 100_000, *, model: str = "", texts: Sequence[str] = ()
) -> pb.AssembleContextResponse:
    request = pb.AssembleContextRequest(
        session_id=session.session_id, token_budget=token_budget, model=model, accompanying_texts=texts
    )
    with use_token(session.client_token()):
        return await session.service.peer.unary(
            session.service.stub.AssembleContext, request, timeout_seconds=60
        )


async def stored_counts(superuser: Superuser, session: Session) -> tuple[int, int, set[str]]:
    """Return the transcript's tokens, the sum of its entries' tokens, and the vocabularies of
    its turns."""
    where = "tenant_id = %s and session_id = %s"
    statement = f"""
        select (select token_count from transcripts where {where}),
            (select sum(token_count) from entries where {where}),
            (select array_agg(distinct token_vocabulary) from entries where {where}
            and kind in ('MESSAGE', 'NOTE'))
    """
    row = await (await superuser.execute(statement, (session.tenant_id, session.session_id) * 3)).fetchone()
    assert row is not None
    return row[0], row[1], set(row[2])


def tokens(entries: Sequence[entry_pb2.Entry], vocabulary: Vocabulary) -> list[int]:
    return [body_token_count(entry.body, vocabulary) for entry in entries]


def is_consistent(assembled: pb.AssembleContextResponse, budget: int) -> bool:
    told = sum(entry.token_count for entry in assembled.entries)
    return assembled.token_count == told and told + assembled.accompanying_token_count <= budget


async def test_AppendEntries__counts_by_the_tenants_vocabulary(session: Session) -> None:
    bodies = [user(TEXT), assistant(TEXT, "c"), result("c", TEXT), note(TEXT)]
    await say(session, *bodies)
    await set_vocabulary(session, 1, CL100K)
    await say(session, *bodies)
    entries = (await session.entries())[1:]
    counts = [entry.token_count for entry in entries]
    assert counts == [*tokens(entries[:4], O200K), *tokens(entries[4:], CL100K)]
    assert counts[4] > 2 * counts[0]
    await set_vocabulary(session, 2, "")
    await say(session, *bodies)
    assert [entry.token_count for entry in (await session.entries())[9:]] == counts[:4]


async def test_AppendEntries__references_are_counted_by_the_tenants_vocabulary(tiered: Tiered) -> None:
    await set_vocabulary(tiered.session, 2, CL100K, stub_large_tool_payloads=True)
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"), TEXT * 200, path="/srv/a")
    await tiered.session.append([assistant("end")], claim=claim)
    assembled = await tiered.context(tail=NO_TAIL)
    assert len(assembled.stubbed) == 2
    assert [entry.token_count for entry in assembled.entries] == tokens(assembled.entries, CL100K)
    whole = {entry.entry_id: entry for entry in await tiered.session.entries()}
    assert [one.full_token_count for one in assembled.stubbed] == tokens(
        [whole[one.entry_id] for one in assembled.stubbed], CL100K
    )
    assert (assembled.is_estimate, assembled.token_vocabulary) == (False, CL100K)


async def test_CreateTranscript__copies_keep_their_counts(session: Session, superuser: Superuser) -> None:
    await say(session, user(TEXT), assistant(TEXT))
    await set_vocabulary(session, 1, CL100K)
    await session.append([user(TEXT)])
    child = session.sibling()
    await child.create(fork_of=session)
    copies = (await child.entries())[1:]
    assert [entry.token_count for entry in copies] == [
        *tokens(copies[:2], O200K),
        *tokens(copies[2:], CL100K),
    ]
    assert (await stored_counts(superuser, child))[2] == {O200K, CL100K}


@pytest.mark.parametrize("vocabulary", [O200K, CL100K])
async def test_AssembleContext__a_model_of_the_stored_vocabulary_gets_the_same_context_as_no_model(
    session: Session, vocabulary: Vocabulary
) -> None:
    await set_vocabulary(session, 1, vocabulary)
    await say(session, user(TEXT), assistant(TEXT, "c"), assistant(TEXT), user("end"))
    model = "openai/gpt-5" if vocabulary is O200K else "openai/gpt-4-turbo"
    for budget in (10_000, 200, 60):
        without = await context(session, budget, texts=[TEXT])
        assert await context(session, budget, model=model, texts=[TEXT]) == without
        assert (without.is_estimate, without.token_vocabulary) == (False, vocabulary)
    assert without.accompanying_token_count == count_tokens(TEXT, vocabulary)


@pytest.mark.parametrize(
    ("model", "percent", "vocabulary"),
    [
        ("anthropic/claude-opus-4", 150, O200K),
        ("google/gemini-2.5-pro", 130, O200K),
        ("openai/gpt-4", 150, O200K),
    ],
)
async def test_AssembleContext__estimates_are_in_one_unit_and_keep_the_budget(
    session: Session, model: str, percent: int, vocabulary: Vocabulary
) -> None:
    await session.append([user("begin")])
    for number in range(30):
        await say(session, assistant(f"{number} " * 7, f"c{number}"), user(f"{number} and " * 5))
    plain = await context(session)
    whole = await context(session, model=model, texts=["some text"])
    assert [entry.entry_id for entry in whole.entries] == [entry.entry_id for entry in plain.entries]
    if percent != 150 or not model.startswith(
        "openai"
    ):  # The synthetic results of this context are counted, not estimated.
        assert [one.token_count for one in whole.entries] == [
            -(-one.token_count * percent // 100) for one in plain.entries
        ]
    assert (whole.is_estimate, whole.token_vocabulary) == (True, vocabulary)
    for budget in range(50, whole.token_count + 50, 61):
        assembled = await context(session, budget, model=model, texts=["some text"])
        assert is_consistent(assembled, budget)
        more = await context(session, budget, texts=["some text"])
        assert len(assembled.entries) <= len(more.entries), "an estimate never gives more than a count"


@pytest.mark.parametrize(("model", "percent"), [("anthropic/claude-opus-4", 150), ("llama3", 130)])
async def test_AssembleContext__references_are_estimated_in_the_same_unit(
    tiered: Tiered, model: str, percent: int
) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, *(long_text(f"a{number}") for number in range(4)))
    await tiered.session.append([assistant("end")], claim=claim)
    plain = await tiered.context(tail=NO_TAIL)
    estimated = await tiered.context(tail=NO_TAIL, model=model)
    assert len(estimated.stubbed) == len(plain.stubbed) == 4
    counts = [[one.token_count for one in answer.entries] for answer in (plain, estimated)]
    assert counts[1] == [-(-count * percent // 100) for count in counts[0]]
    full = [[one.full_token_count for one in answer.stubbed] for answer in (plain, estimated)]
    assert full[1] == [-(-count * percent // 100) for count in full[0]]
    assert (estimated.is_estimate, is_consistent(estimated, 200_000)) == (True, True)
    exactly = await tiered.context(estimated.token_count, tail=NO_TAIL, model=model)
    assert exactly == estimated
    less = await tiered.context(estimated.token_count - 1, tail=NO_TAIL, model=model)
    assert len(less.entries) < len(estimated.entries)
    assert is_consistent(less, estimated.token_count - 1)


async def test_AssembleContext__reports_entries_that_another_vocabulary_counted(session: Session) -> None:
    await say(session, user(TEXT), assistant(TEXT))
    await set_vocabulary(session, 1, CL100K)
    await say(session, user(TEXT), assistant(TEXT))
    mixed = await context(session)
    assert (mixed.is_estimate, mixed.token_vocabulary) == (True, CL100K)
    assert is_consistent(mixed, 100_000)
    newest = await context(session, mixed.entries[2].token_count + mixed.entries[3].token_count)
    assert (len(newest.entries), newest.is_estimate, newest.token_vocabulary) == (2, False, CL100K)
    by_o200k = await context(session, model="openai/o3")
    assert (by_o200k.is_estimate, by_o200k.token_vocabulary) == (True, O200K)
    assert [entry.token_count for entry in by_o200k.entries[:2]] == tokens(by_o200k.entries[:2], O200K)
    await recount(session)
    counted = await context(session)
    assert (counted.is_estimate, counted.token_vocabulary) == (False, CL100K)
    assert [entry.token_count for entry in counted.entries] == tokens(counted.entries, CL100K)


async def test_AssembleContext__reports_an_old_message_that_another_vocabulary_counted(
    session: Session,
) -> None:
    await session.append([user(TEXT)])
    await set_vocabulary(session, 1, CL100K)
    claim = await session.acquire(1)
    await session.append([assistant(f"{number}") for number in range(200)], claim=claim)
    assembled = await context(session, 100)
    assert assembled.entries[0].seq == 2
    assert len(assembled.entries) < 100
    assert (assembled.is_estimate, assembled.token_vocabulary) == (True, CL100K)


async def test_RecountTranscript__gives_the_counts_of_a_new_append(
    session: Session, superuser: Superuser
) -> None:
    await say(session, user(TEXT), assistant(TEXT, "c"), result("c", TEXT), note(TEXT))
    await set_vocabulary(session, 1, CL100K)
    await session.append([user(TEXT)])
    before = await session.entries()
    planned = await recount(session, dry_run=True)
    assert await session.entries() == before
    done = await recount(session)
    assert done == planned
    after = await session.entries()
    assert [entry.token_count for entry in after] == tokens(after, CL100K)
    assert [entry.chain_hash for entry in after] == [entry.chain_hash for entry in before]
    assert (done.examined_entry_count, done.recounted_entry_count) == (6, 4)
    assert done.token_count_before == sum(entry.token_count for entry in before[1:5])
    assert done.token_count_after == sum(entry.token_count for entry in after[1:5])
    assert done.token_vocabulary == CL100K
    total = sum(entry.token_count for entry in after)
    assert await stored_counts(superuser, session) == (total, total, {CL100K})
    again = await recount(session)
    assert (again.examined_entry_count, again.recounted_entry_count, again.token_count_after) == (6, 0, 0)


async def test_RecountTranscript__loses_nothing_beside_writers(
    session: Session, superuser: Superuser
) -> None:
    await session.append([user(f"{number} {TEXT}") for number in range(200)])
    is_over = asyncio.Event()

    async def write() -> None:
        number = 0
        while not is_over.is_set():
            await session.append([user(f"{number} {TEXT}"), user("yes")])
            number += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        for version, vocabulary in enumerate([CL100K, O200K, CL100K], start=1):
            await set_vocabulary(session, version, vocabulary)
            await asyncio.gather(*(recount(session) for _ in range(3)))
        is_over.set()
    await recount(session)
    entries: list[entry_pb2.Entry] = []
    while page := await session.entries(after_seq=entries[-1].seq if entries else 0):
        entries += page
    counts = tokens(entries, CL100K)
    assert [entry.token_count for entry in entries] == counts
    assert await stored_counts(superuser, session) == (sum(counts), sum(counts), {CL100K})


async def test_RecountTranscript__recounts_references(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"), TEXT * 200, path="/srv/a")
    await tiered.session.append([assistant("end")], claim=claim)
    await set_vocabulary(tiered.session, 2, CL100K, stub_large_tool_payloads=True)
    before = await tiered.context(tail=NO_TAIL)
    assert before.is_estimate
    await recount(tiered.session)
    after = await tiered.context(tail=NO_TAIL)
    assert len(after.stubbed) == 2
    assert [entry.body for entry in after.entries] == [entry.body for entry in before.entries]
    assert [entry.token_count for entry in after.entries] == tokens(after.entries, CL100K)
    assert not after.is_estimate


async def test_RecountTranscript__recounts_summaries(compacting: Compacting, superuser: Superuser) -> None:
    session = compacting.session
    claim = await session.acquire(1)
    await compacting.converse(claim, turns=5, name=TEXT)
    compacting.peers.answers.append(TEXT)
    await set_vocabulary(session, 1, CL100K)
    first = (await compacting.compact(claim)).summary
    assert (
        first.token_count == count_tokens(TEXT, CL100K) == count_tokens(first.body.compaction.summary, CL100K)
    )
    assert (await compacting.context()).is_estimate
    await set_vocabulary(session, 2, O200K)
    await recount(session)
    counted = await compacting.context()
    assert [entry.token_count for entry in counted.entries] == [
        count_tokens(counted.entries[0].body.compaction.summary, O200K),
        *tokens(counted.entries[1:], O200K),
    ]
    assert (counted.is_estimate, counted.entries[0].entry_id) == (False, first.entry_id)
    statement = """
        select s.covered_token_count, (select sum(e.token_count) from entries e
            where e.tenant_id = s.tenant_id and e.session_id = s.session_id and e.seq <= s.last_source_seq)
        from summaries s where s.tenant_id = %s
    """
    [(covered, total)] = await (await superuser.execute(statement, (session.tenant_id,))).fetchall()
    assert covered == total > 0


async def test_TierTranscript__later_references_are_counted_as_their_entries_are(tiered: Tiered) -> None:
    await set_vocabulary(tiered.session, 2, CL100K)
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, TEXT * 200)
    await tiered.session.append([assistant("end")], claim=claim)
    await set_vocabulary(tiered.session, 3, CL100K, stub_large_tool_payloads=True)
    done = await tiered.run_tier(storage_pb.TIER_ACTION_APPLY)
    assert done.externalized_entry_count == 1
    assembled = await tiered.context(tail=NO_TAIL)
    assert len(assembled.stubbed) == 1
    assert [entry.token_count for entry in assembled.entries] == tokens(assembled.entries, CL100K)


async def test_TierTranscript__references_made_during_a_recount_are_counted_as_their_entries_are(
    tiered: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.set_tier(2, is_on=False)
    [seq] = await tiered.converse(claim, TEXT * 200)
    await tiered.session.append([assistant("end")], claim=claim)
    await set_vocabulary(tiered.session, 3, CL100K, stub_large_tool_payloads=True)
    session = tiered.session
    [entry] = [entry for entry in await session.entries() if entry.seq == seq]
    async with await AsyncConnection.connect(session.service.dsn.owner, autocommit=False) as recounting:
        await recounting.execute("set local search_path = transcript")
        head = (await session.page()).head
        await recounting.execute("select set_config('spawnmesh.tenant', %s, true)", (session.tenant_id,))
        asked = {
            "tenant_id": session.tenant_id,
            "session_id": session.session_id,
            "incarnation": head.incarnation,
            "vocabulary": CL100K,
            "seqs": [seq],
            "token_counts": tokens([entry], CL100K),
            "stub_token_counts": [None],
            "thinking_token_counts": [None],
        }
        for name in ("lock_for_recount", "recount_entries"):
            await recounting.execute(all_statements()[name], asked)
        tiering = asyncio.create_task(tiered.run_tier(storage_pb.TIER_ACTION_APPLY))
        # The move has read the entry, and waits for the recount's lock.
        async with asyncio.timeout(60):
            while not await waits_for(superuser, recounting):
                await asyncio.sleep(0.01)
        await recounting.commit()
    assert (await tiering).externalized_entry_count == 1
    await recount(session)
    assembled = await tiered.context(tail=NO_TAIL)
    assert len(assembled.stubbed) == 1
    assert [entry.token_count for entry in assembled.entries] == tokens(assembled.entries, CL100K)


async def test_RecountTranscript__is_for_clients_of_the_tenant(session: Session) -> None:
    stranger = session.service.session()
    with refused(Reason.NOT_FOUND):
        await recount(session, token=stranger.client_token())
    claim = await session.acquire(1)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await recount(session, token=session.run_token(claim))
    with refused(Reason.INVALID_REQUEST):
        await set_vocabulary(session, 5, "p50k_base")
