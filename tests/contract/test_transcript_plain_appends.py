"""Appends that one statement makes: they are what the longer way makes of them, and what a rule stands against is left to it, untouched."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from itertools import product
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript import store
from spawnmesh_transcript.append_queue import open_append_queue
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry, WriterClaim
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.plain_appends import append_plain, are_plain
from spawnmesh_transcript.store import Append, AppendOutcome, Key

from tests.contract.transcript_fixtures import Service, Session, assistant, service, session, superuser, waits_for

__all__ = ["service", "session", "superuser"]

Superuser = AsyncConnection[tuple[Any, ...]]

_ENTRIES = """
    select seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_seq, writer_run_id, writer_epoch,
        writer_service, writer_client, chain_hash, body, token_vocabulary, dropped_bytes
    from entries where tenant_id = %s and session_id = %s order by seq
"""
_KEYS = """
    select idempotency_key, content_hash, first_seq, last_seq, writer_run_id, writer_epoch
    from appends where tenant_id = %s and session_id = %s order by first_seq, idempotency_key
"""
_TRANSCRIPT = """
    select seq, chain_hash, newest_entry_id, writer_run_id, writer_epoch, turn_count, superseded_turn_count, token_count, logical_bytes,
        dropped_bytes, cooled_seq, forked_from_session_id, parent_session_id, state
    from transcripts where tenant_id = %s and session_id = %s
"""


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    """As the service's own role."""
    async with open_database(service.dsn.app, name="plain", max_connections=4) as database:
        yield database


def _append(session: Session, claim: pb.WriterClaim, *, key: str = "", body: bytes = b"") -> Append:
    body = body or secrets.token_bytes(16)
    entry = NewEntry(EntryKind.MESSAGE, body, token_count=3, role=Role.ASSISTANT)
    writer = Writer(claim=WriterClaim(claim.run_id, claim.epoch))
    return Append(Key(session.tenant_id, session.session_id), (entry,), key or secrets.token_hex(8), body, writer, 0)


async def _stored(superuser: Superuser, session: Session) -> list[list[Any]]:
    """All that is kept of a transcript, but for what no two of them share."""
    key = (session.tenant_id, session.session_id)
    return [await (await superuser.execute(statement, key)).fetchall() for statement in (_ENTRIES, _KEYS, _TRANSCRIPT)]


async def _check_whole(superuser: Superuser, session: Session) -> int:
    """Everything that is counted and chained agrees with the entries; gives how many there are."""
    entries, keys, ((seq, chain_hash, newest, _, _, turns, _, tokens, size, *_),) = await _stored(superuser, session)
    assert [entry[0] for entry in entries] == [*range(1, seq + 1)]
    assert [key[2:4] for key in keys] == [(n, n) for n in range(2, seq + 1)]
    linked = b""
    for entry in entries:
        linked = sha256(linked + entry[16]).digest()
        assert entry[15] == linked
    assert (chain_hash, newest) == (linked, entries[-1][1])
    assert [entry[2] for entry in entries[1:]] == [entry[1] for entry in entries[:-1]]
    assert turns == sum(entry[3] in ("MESSAGE", "NOTE") for entry in entries)
    assert tokens == sum(entry[5] for entry in entries)
    assert size == sum(len(entry[16]) for entry in entries)
    in_time = "select seq from entries where tenant_id = %s and session_id = %s order by create_time, seq"
    found = await superuser.execute(in_time, (session.tenant_id, session.session_id))
    assert await found.fetchall() == [(entry[0],) for entry in entries]
    return len(entries)


def _drawn(random: Random, kind: EntryKind, role: Role | None) -> NewEntry:
    """An entry that refers to no other, with anything in it that it may have."""
    return NewEntry(
        kind,
        random.randbytes(random.choice([0, 1, 300])),
        token_count=random.randrange(50),
        role=role,
        calls=tuple(f'call {n}, "quoted" {{}}' for n in range(random.randrange(3))),
        answers=random.choice(["", "call-1"]),
        is_synthetic=random.random() < 0.5,
        entry_id=new_id(IdKind.ENTRY),
        parent_entry_id=random.choice(["", new_id(IdKind.ENTRY)]),
        token_vocabulary=random.choice([*Vocabulary]),
    )


async def test_what_is_stored_is_what_the_longer_way_stores(
    session: Session, database: Database, superuser: Superuser
) -> None:
    seed = secrets.randbits(32)
    random = Random(seed)
    twin = session.sibling()
    await twin.create()
    # Two transcripts with one history.
    twins = "update transcripts set chain_hash = 'x', newest_entry_id = 'ent_x' where tenant_id = %s"
    await superuser.execute(twins, (session.tenant_id,))
    claim = await session.acquire(3)
    await twin.acquire(3, run_id=claim.run_id)
    writers = [Writer(claim=WriterClaim(claim.run_id, 3)), Writer(service="session"), Writer(client="gateway")]
    for kind, role in product(EntryKind, [None, *Role]):
        if role is Role.NOTE:
            continue
        key, entry = secrets.token_hex(8), _drawn(random, kind, role)
        append = Append(
            Key(session.tenant_id, session.session_id), (entry,), key, random.randbytes(32), random.choice(writers), 0
        )
        assert are_plain([append])
        (plain,) = await append_plain(database, session.tenant_id, [append])
        other = replace(append, key=Key(twin.tenant_id, twin.session_id))
        (longer,) = await store.append_entries(database, twin.tenant_id, [other], waits=True)
        assert plain.head is not None
        assert longer.head is not None
        assert plain == replace(longer, head=replace(longer.head, incarnation=plain.head.incarnation)), seed
        assert plain.head.incarnation != longer.head.incarnation
    mine, theirs = await _stored(superuser, session), await _stored(superuser, twin)
    assert (mine[0][1:], *mine[1:]) == (theirs[0][1:], *theirs[1:]), seed
    assert len(mine[0]) == len(mine[1]) + 1


async def test_each_of_those_that_share_a_transaction_has_its_own_entry_or_none(
    session: Session, database: Database, superuser: Superuser
) -> None:
    sessions = [session, *(session.sibling() for _ in range(3))]
    for one in sessions[1:]:
        await one.create()
    claims = [await one.acquire(1) for one in sessions]
    appends = [_append(one, claim) for one, claim in zip(sessions, claims, strict=True)]
    appends[1] = replace(appends[1], writer=Writer(claim=WriterClaim(claims[0].run_id, 1)))
    outcomes = await append_plain(database, session.tenant_id, appends)
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED", "BUSY", "APPENDED", "APPENDED"]
    assert [await _check_whole(superuser, one) for one in sessions] == [2, 1, 2, 2]
    for one, append in zip(sessions, appends, strict=True):
        bodies = [entry[16] for entry in (await _stored(superuser, one))[0][1:]]
        assert bodies == ([append.entries[0].body] if one is not sessions[1] else [])
    statement = "select count(distinct xmin::text) from entries where tenant_id = %s and seq > 1"
    assert await (await superuser.execute(statement, (session.tenant_id,))).fetchone() == (1,)


Break = Callable[[Session, Append, Superuser], Awaitable[Append]]


async def _used_key(session: Session, append: Append, superuser: Superuser) -> Append:
    by = append.writer.claim
    assert by is not None
    claim = pb.WriterClaim(run_id=by.run_id, epoch=by.epoch)
    done = await session.append([assistant("word")], claim=claim, key=append.idempotency_key)
    statement = "select content_hash from appends where tenant_id = %s and first_seq = %s"
    row = await (await superuser.execute(statement, (session.tenant_id, done.entries[0].seq))).fetchone()
    assert row is not None
    return replace(append, content_hash=row[0])


async def _other_content(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(await _used_key(session, append, superuser), content_hash=b"other")


async def _epoch(session: Session, append: Append, superuser: Superuser) -> Append:
    claim = append.writer.claim
    assert claim is not None
    return replace(append, writer=Writer(claim=WriterClaim(claim.run_id, claim.epoch + 1)))


async def _run(session: Session, append: Append, superuser: Superuser) -> Append:
    claim = append.writer.claim
    assert claim is not None
    return replace(append, writer=Writer(claim=WriterClaim(new_id(IdKind.RUN), claim.epoch)))


async def _settings(session: Session, append: Append, superuser: Superuser) -> Append:
    await session.prepare_tenant(4, mask_secrets=True)
    return append


async def _no_settings(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(append, settings_version=4)


async def _deleted(session: Session, append: Append, superuser: Superuser) -> Append:
    await session.delete()
    return replace(append, writer=Writer(service="session"))


async def _nowhere(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(append, key=Key(session.tenant_id, new_id(IdKind.SESSION)))


async def _purging(session: Session, append: Append, superuser: Superuser) -> Append:
    statement = (
        "insert into tenants (tenant_id, settings_version, mask_secrets, is_purging) values (%s, 0, false, true)"
    )
    await superuser.execute(statement, (session.tenant_id,))
    return append


async def _others(session: Session, append: Append, superuser: Superuser) -> Append:
    stranger = session.service.session()
    await stranger.create()
    return replace(append, key=Key(session.tenant_id, stranger.session_id), writer=Writer(service="session"))


_REFUSED: dict[str, tuple[Break, str]] = {
    "a key that was used": (_used_key, "REPLAYED"),
    "a key that was used for something else": (_other_content, "KEY_REUSED"),
    "an epoch that was never given": (_epoch, "CLAIM_LOST"),
    "another run": (_run, "CLAIM_LOST"),
    "settings that changed": (_settings, "SETTINGS_CHANGED"),
    "settings that there are none of": (_no_settings, "SETTINGS_CHANGED"),
    "a transcript that was deleted": (_deleted, "NOT_FOUND"),
    "a transcript that never was": (_nowhere, "NOT_FOUND"),
    "a tenant that is being purged": (_purging, "NOT_FOUND"),
    "a transcript of another tenant": (_others, "NOT_FOUND"),
}


@pytest.mark.parametrize("name", _REFUSED)
async def test_what_a_rule_stands_against_is_left_to_the_longer_way(
    session: Session, database: Database, superuser: Superuser, name: str
) -> None:
    broken, answer = _REFUSED[name]
    append = _append(session, await session.acquire(1))
    append = await broken(session, append, superuser)
    before = await _stored(superuser, session)
    assert are_plain([append])
    (outcome,) = await append_plain(database, session.tenant_id, [append])
    assert outcome.is_busy
    async with open_append_queue(database, slots=1) as queue:
        assert (await queue.append(append)).outcome == answer
    assert await _stored(superuser, session) == before


async def test_settings_that_hold_are_no_hindrance(session: Session, database: Database) -> None:
    await session.prepare_tenant(4, mask_secrets=True)
    append = replace(_append(session, await session.acquire(1)), settings_version=4)
    (outcome,) = await append_plain(database, session.tenant_id, [append])
    assert (outcome.outcome, outcome.first_seq) == ("APPENDED", 2)


@pytest.mark.parametrize("wrong", [{"kind": "NOBODY"}, {"role": "NOBODY"}], ids=["kind", "role"])
async def test_no_plain_entry_of_what_is_not_known_is_stored(
    session: Session, database: Database, superuser: Superuser, wrong: dict[str, Any]
) -> None:
    append = _append(session, await session.acquire(1))
    append = replace(append, entries=(replace(append.entries[0], **wrong),))
    async with open_append_queue(database, slots=1) as queue:
        with pytest.raises(psycopg.errors.CheckViolation, match="NOBODY"):
            await queue.append(append)
    assert await _check_whole(superuser, session) == 1


class _Cut(bytes):
    """A body that says that it is longer than it is."""

    def __len__(self) -> int:
        return super().__len__() + 1


async def test_no_body_shorter_than_its_size_is_stored(
    session: Session, database: Database, superuser: Superuser
) -> None:
    append = _append(session, await session.acquire(1), body=_Cut(b"lon"))
    (outcome,) = await append_plain(database, session.tenant_id, [append])
    assert outcome.is_busy
    assert await _check_whole(superuser, session) == 1


async def test_what_refers_to_others_is_not_plain(session: Session) -> None:
    append = _append(session, await session.acquire(1))
    (entry,) = append.entries
    assert are_plain([append, _append(session.sibling(), pb.WriterClaim())])
    assert not are_plain([replace(append, entries=(entry, entry))])
    assert not are_plain([replace(append, entries=(replace(entry, label=Label.FINAL),))])
    assert not are_plain([replace(append, entries=(replace(entry, target_entry_id="ent_x"),))])
    assert not are_plain([append, _append(session, pb.WriterClaim())]), "two for one transcript"


@pytest.mark.parametrize("is_same_key", [False, True], ids=["two keys", "one key"])
async def test_two_for_one_transcript_are_none(
    session: Session, database: Database, superuser: Superuser, is_same_key: bool
) -> None:
    claim, other = await session.acquire(1), session.sibling()
    await other.create()
    first = _append(session, claim)
    second = _append(session, claim, key=first.idempotency_key if is_same_key else "")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await append_plain(database, session.tenant_id, [_append(other, await other.acquire(1)), first, second])
    assert [await _check_whole(superuser, one) for one in (session, other)] == [1, 1]


@pytest.fixture
async def paused(superuser: Superuser) -> AsyncIterator[str]:
    """A key whose append waits in the midst of its statement until the superuser unlocks 34."""
    await superuser.execute("select pg_advisory_lock(34)")
    await superuser.execute("""
        create function pause() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_xact_lock(34);
            return new;
        end
        $$;
        create trigger pause before insert on appends for each row when (new.idempotency_key = 'paused') execute function pause();
    """)
    yield "paused"
    await superuser.execute("select pg_advisory_unlock_all()")
    await superuser.execute("drop function pause() cascade")


async def _appended(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    for _ in range(3):
        await session.append([assistant("meanwhile")], claim=claim)


async def _key_taken(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    await session.append([assistant("meanwhile")], claim=claim, key=append.idempotency_key)


async def _taken_over(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    await session.append([assistant("meanwhile")], claim=await session.acquire(2))


async def _gone(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    await session.delete()


@pytest.mark.parametrize(
    ("meanwhile", "answer", "entry_count"),
    [(_appended, "APPENDED", 5), (_key_taken, "BUSY", 2), (_taken_over, "BUSY", 2), (_gone, "BUSY", 0)],
    ids=["appended", "used the key", "took over", "deleted"],
)
async def test_what_others_commit_behind_the_snapshot_is_seen_by_whoever_locks(
    session: Session,
    database: Database,
    superuser: Superuser,
    paused: str,
    meanwhile: Callable[[Session, pb.WriterClaim, Append], Awaitable[None]],
    answer: str,
    entry_count: int,
) -> None:
    """The statement has its snapshot and holds the first transcript; only then the second one is written, and then locked."""
    other = session.sibling()
    await other.create()
    first = _append(session, await session.acquire(1), key=paused)
    claim = await other.acquire(1)
    second = _append(other, claim)
    making = asyncio.create_task(append_plain(database, session.tenant_id, [first, second]))
    while not await waits_for(superuser, superuser):
        assert not making.done()
        await asyncio.sleep(0.01)
    await meanwhile(other, claim, second)
    await superuser.execute("select pg_advisory_unlock(34)")
    outcomes = await making
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED", answer]
    assert await _check_whole(superuser, session) == 2
    if entry_count:
        assert await _check_whole(superuser, other) == entry_count
        assert outcomes[1].first_seq == (entry_count if answer == "APPENDED" else 0)


async def test_replicas_that_write_the_same_transcripts_lose_and_double_nothing(
    session: Session, service: Service, superuser: Superuser
) -> None:
    sessions = [session, session.sibling(), session.sibling()]
    for one in sessions[1:]:
        await one.create()
    claims = [await one.acquire(1) for one in sessions]

    async def write(database: Database, first: int) -> list[AppendOutcome]:
        """Appends to two of the three, at once or one after the other, until each was made so often."""
        pair, made = [first % 3, (first + 1) % 3], []
        for _ in range(25):
            left = [_append(sessions[n], claims[n]) for n in pair]
            while left:
                outcomes = await append_plain(database, session.tenant_id, left)
                made += [outcome for outcome in outcomes if not outcome.is_busy]
                left = [append for append, outcome in zip(left, outcomes, strict=True) if outcome.is_busy]
        return made

    async with (
        asyncio.timeout(20),
        open_database(service.dsn.app, name="one", max_connections=3) as one,
        open_database(service.dsn.app, name="two", max_connections=3) as two,
    ):
        written = await asyncio.gather(*(write(database, n) for database in (one, two) for n in range(3)))
    made = [outcome for outcomes in written for outcome in outcomes]
    assert len(made) == 2 * 3 * 2 * 25
    assert sum([await _check_whole(superuser, one) for one in sessions]) == len(made) + 3
    assert len({(outcome.head.incarnation, outcome.first_seq) for outcome in made if outcome.head}) == len(made)
