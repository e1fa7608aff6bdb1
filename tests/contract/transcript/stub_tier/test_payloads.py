"""Large tool results in the blob store: put after the append, released with the transcript,
repaired after a failure."""

import asyncio
from typing import Any

from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import payloads as payload_store

from tests.support.transcript.bodies import assistant, text_of, user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser, pages_touched
from tests.support.transcript.tier import (
    NO_TAIL,
    Tiered,
    answering,
    calling,
    long_text,
)


async def rows(superuser: Superuser, tiered: Tiered, table: str) -> list[tuple[Any, ...]]:
    statement = f"select * from {table} where tenant_id = %s order by 1, 2"
    return await (await superuser.execute(statement, (tiered.session.tenant_id,))).fetchall()


async def objects(tiered: Tiered) -> int:
    return len(await asyncio.to_thread(tiered.blobs.object_keys))


async def test_AppendEntries__answers_once_the_payload_is_in_the_blob_store(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, text := long_text("a"))
    [payload] = (await tiered.context(tail=NO_TAIL)).stubbed or [None]
    assert payload is None, "not answered yet"
    assert await objects(tiered) == 1
    await tiered.session.append([assistant("end")], claim=claim)
    [stubbed] = (await tiered.context(tail=NO_TAIL)).stubbed
    assert await tiered.blob(stubbed.file_ids[0]) == text.encode()


async def test_AppendEntries__a_replay_has_one_payload(tiered: Tiered, superuser: Superuser) -> None:
    claim = await tiered.session.acquire(1)
    entries = [calling("c", "read", {}), answering("c", long_text("a"))]
    first = await tiered.session.append(entries, claim=claim, key="k")
    again = await tiered.session.append(entries, claim=claim, key="k")
    assert again.replayed
    assert again.entries == first.entries
    assert (len(await rows(superuser, tiered, "payloads")), len(await rows(superuser, tiered, "stubs"))) == (
        1,
        1,
    )


async def test_AppendEntries__a_refused_append_leaves_no_payload(
    tiered: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.session.acquire(2)
    with refused(Reason.WRITER_CLAIM_LOST):
        await tiered.session.append([calling("c", "read", {}), answering("c", long_text("a"))], claim=claim)
    assert await rows(superuser, tiered, "payloads") == await rows(superuser, tiered, "stubs") == []
    assert await objects(tiered) == 0


async def test_AppendEntries__without_the_blob_store_the_entry_is_stored_and_the_payload_put_later(
    tiered: Tiered, cut_off: Tiered
) -> None:
    """Simulate a crash between commit and put: no reference to a missing blob, and the next
    context puts it."""
    claim = await tiered.session.acquire(1)
    [seq] = await cut_off.converse(claim, text := long_text("a"))
    await cut_off.session.append([assistant("end")], claim=claim)
    for replica in (cut_off, tiered):
        context = await replica.context(tail=NO_TAIL)
        assert not context.stubbed
        assert text_of(context.entries[1]) == text
    async with asyncio.timeout(60):
        while not (context := await tiered.context(tail=NO_TAIL)).stubbed:
            await asyncio.sleep(0.02)
    assert [one.seq for one in context.stubbed] == [seq]
    assert await tiered.blob(context.stubbed[0].file_ids[0]) == text.encode()


async def test_AppendEntries__a_repeat_puts_payloads_that_were_cut_off(
    tiered: Tiered, cut_off: Tiered
) -> None:
    claim = await tiered.session.acquire(1)
    entries = [calling("c", "read", {}), answering("c", long_text("a")), assistant("end")]
    await cut_off.session.append(entries, claim=claim, key="k")
    assert await objects(tiered) == 0
    assert (await tiered.session.append(entries, claim=claim, key="k")).replayed
    assert len((await tiered.context(tail=NO_TAIL)).stubbed) == 1


async def test_AppendEntries__payloads_that_two_calls_put_at_once_become_references(
    tiered: Tiered, cut_off: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    entries = [calling("c1", "read", {}), answering("c1", long_text("a"), long_text("b"))]
    await cut_off.session.append(entries, claim=claim)
    key = Key(tiered.session.tenant_id, tiered.session.session_id)
    [one, other] = [row[1] for row in await rows(superuser, tiered, "payloads")]

    async def mark(database: Database, blob_id: str) -> None:
        async with database.transaction(key.tenant_id) as connection:
            await payload_store.mark_stored(connection, key, [blob_id])

    async with open_database(tiered.session.service.dsn.app, name="marking", max_connections=2) as database:
        async with database.transaction(key.tenant_id) as connection:
            await payload_store.mark_stored(connection, key, [one])
            marking = asyncio.create_task(mark(database, other))
            async with asyncio.timeout(60):
                while not marking.done() and not await _waits_for_a_lock(superuser):
                    await asyncio.sleep(0.01)
        await marking
    statement = "select is_stored from stubs where tenant_id = %s"
    assert await (await superuser.execute(statement, (key.tenant_id,))).fetchall() == [(True,)]


async def _waits_for_a_lock(superuser: Superuser) -> bool:
    statement = (
        "select count(*) from pg_stat_activity"
        " where application_name = 'marking' and wait_event_type = 'Lock'"
    )
    [(count,)] = await (await superuser.execute(statement)).fetchall()
    return bool(count)


async def test_DescribeFile__reads_the_entry_before_the_blob_store_has_the_file(
    tiered: Tiered, cut_off: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    await cut_off.converse(claim, text := long_text("a"))
    [payload] = await rows(superuser, tiered, "payloads")
    described = await tiered.describe(
        payload[1].replace("blb_", "file_"), expand=True, bytes={"offset": 5, "length": 100}
    )
    assert described.content.data.decode() == text[5:105]


async def test_DeleteTranscript__releases_payloads(tiered: Tiered, superuser: Superuser) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, *(long_text(f"w{number}") for number in range(40)))
    assert await objects(tiered) == 40
    await tiered.session.delete()
    assert await objects(tiered) == 0
    assert await rows(superuser, tiered, "payloads") == await rows(superuser, tiered, "stubs") == []


async def test_DeleteTranscript__is_resumed_after_an_outage_of_the_blob_store(
    tiered: Tiered, cut_off: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"))
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await cut_off.session.delete()
    with refused(Reason.NOT_FOUND):
        await tiered.session.entries()
    await tiered.session.delete()
    assert await objects(tiered) == 0
    assert await rows(superuser, tiered, "payloads") == []


async def test_DeleteTranscript__deletes_payloads_that_were_never_put(
    tiered: Tiered, cut_off: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    await cut_off.converse(claim, long_text("a"))
    await tiered.session.delete()
    assert await objects(tiered) == 0
    assert await rows(superuser, tiered, "payloads") == []


async def test_CreateTranscript__a_fork_has_its_own_references(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("task")])
    await tiered.converse(claim, text := long_text("a"), path="/x")
    await tiered.session.append([assistant("end")], claim=claim)
    fork = tiered.on(tiered.session.sibling())
    await fork.session.create(fork_of=tiered.session, max_token_count=100_000)
    async with asyncio.timeout(60):
        while not (context := await fork.context(tail=NO_TAIL)).stubbed:
            await asyncio.sleep(0.02)
    [own] = (await tiered.context(tail=NO_TAIL)).stubbed
    [forked] = context.stubbed
    assert own.file_ids != forked.file_ids
    assert "\npath: /x\n" in text_of(context.entries[2])
    assert await objects(tiered) == 1, "the same bytes are stored once"

    await tiered.session.delete()
    assert await fork.blob(forked.file_ids[0]) == text.encode()
    assert (await fork.describe(forked.file_ids[0], expand=True)).content.data.decode() == text
    await fork.session.delete()
    assert await objects(tiered) == 0


async def test_CreateTranscript__the_references_of_a_masked_fork_have_masked_payloads(
    tiered: Tiered,
) -> None:
    claim = await tiered.session.acquire(1)
    key = "ghp_" + "a1B2c3D4e5" * 4
    text = f"{long_text('a')} {key} end"
    await tiered.converse(claim, text, path="/x")
    await tiered.session.append([assistant("end")], claim=claim)
    await tiered.set_tier(2, is_on=True, mask_secrets=True)
    fork = tiered.on(tiered.session.sibling())
    await fork.session.create(fork_of=tiered.session, max_token_count=100_000)
    async with asyncio.timeout(60):
        while not (context := await fork.context(tail=NO_TAIL)).stubbed:
            await asyncio.sleep(0.02)
    [forked] = context.stubbed
    masked = text.replace(key, "[$redacted:provider_key]")
    assert await fork.blob(forked.file_ids[0]) == masked.encode()
    assert (await fork.describe(forked.file_ids[0], expand=True)).content.data.decode() == masked
    [whole] = [entry for entry in await fork.session.entries() if entry.seq == forked.seq]
    assert (text_of(whole), whole.token_count) == (masked, forked.full_token_count)
    await tiered.session.append([whole.body], claim=claim)
    assert (await tiered.session.entries())[-1].token_count == whole.token_count
    [own] = (await tiered.context(tail=NO_TAIL)).stubbed[:1]
    assert await tiered.blob(own.file_ids[0]) == text.encode()


async def test_PurgeTenant__leaves_no_row(tiered: Tiered, superuser: Superuser) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"))
    while not (await tiered.session.purge_tenant()).done:
        pass
    assert await rows(superuser, tiered, "payloads") == await rows(superuser, tiered, "stubs") == []


async def test_AppendEntries__a_tenant_without_the_tier_puts_nothing(tiered: Tiered) -> None:
    await tiered.set_tier(2, is_on=False)
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a", 100_000))
    assert await objects(tiered) == 0


async def test_AppendEntries__concurrent_appends_all_become_references(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    pairs = [
        (calling(f"c{number}", "read", {}), answering(f"c{number}", long_text(f"w{number}x")))
        for number in range(20)
    ]
    await asyncio.gather(*(tiered.session.append(pair, claim=claim) for pair in pairs))
    await tiered.session.append([assistant("end")], claim=claim)
    assert len((await tiered.context(tail=NO_TAIL)).stubbed) == 20


async def test_payloads_of_another_tenant_are_not_visible(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"))
    await tiered.session.append([assistant("end")], claim=claim)
    [stubbed] = (await tiered.context(tail=NO_TAIL)).stubbed
    stranger = tiered.on(Session(tiered.session.service, f"{tiered.session.tenant_id}-x"))
    with refused(Reason.NOT_FOUND):
        await stranger.describe(stubbed.file_ids[0])


async def test_statements_on_stubs_cost_what_they_read(tiered: Tiered, superuser: Superuser) -> None:
    """Also if the planner's statistics are of short transcripts."""
    await superuser.execute("analyze entries")
    claim = await tiered.session.acquire(1)
    for _ in range(8):
        await tiered.session.append([assistant("word " * 50) for _ in range(250)], claim=claim)
    seqs = await tiered.converse(claim, *(long_text(f"w{number}x") for number in range(5)))
    [(blob_id,), *_] = await (
        await superuser.execute(
            "select blob_id from payloads where tenant_id = %s", (tiered.session.tenant_id,)
        )
    ).fetchall()
    key = {"tenant_id": tiered.session.tenant_id, "session_id": tiered.session.session_id}
    reads: dict[str, dict[str, Any]] = {
        "scan_stubs": {**key, "first_seq": 1_000, "last_seq": 5_000},
        "read_stubs": {**key, "first_seqs": seqs, "last_seqs": seqs},
        "list_stored_files": {**key, "seqs": seqs},
        "find_calls": {**key, "call_ids": ["call-1-0-10000"], "row_count": 20, "before_seq": None},
        "list_unstored_payloads": {**key, "row_count": 8, "file_count": 256},
        "read_payload": {"tenant_id": key["tenant_id"], "blob_id": blob_id},
    }
    statements = all_statements()
    async with open_database(tiered.session.service.dsn.app, name="cost", max_connections=1) as database:
        for _ in range(7):
            async with database.transaction(tiered.session.tenant_id) as connection:
                touched = {
                    name: await pages_touched(connection, statements[name], reads[name]) for name in reads
                }
            assert max(touched.values()) < 100, touched
