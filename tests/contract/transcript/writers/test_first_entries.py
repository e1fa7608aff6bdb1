"""A transcript is created together with its first entries."""

import asyncio

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, text_of, user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.tables import Superuser

SECRET = "sk-ant-" + "a1" * 20


@pytest.fixture
def fresh(session: Session) -> Session:
    """A session without a transcript, of a tenant that is prepared."""
    return session.sibling()


async def texts(session: Session) -> list[str]:
    return [text_of(entry) for entry in (await session.entries())[1:]]


async def test_CreateTranscript__appends_entries_behind_the_header(fresh: Session) -> None:
    head = await fresh.create(entries=[user("one"), user("two")], request_id="first")
    entries = await fresh.entries()
    assert [entry.seq for entry in entries] == [1, 2, 3]
    assert [entry.body.WhichOneof("kind") for entry in entries] == ["header", "message", "message"]
    assert (head.seq, head.chain_hash) == (3, entries[-1].chain_hash)
    assert await texts(fresh) == ["one", "two"]
    assert {entry.writer.service for entry in entries} == {"session"}


async def test_CreateTranscript__header_and_entries_are_one_transaction(
    fresh: Session, superuser: Superuser
) -> None:
    await fresh.create(entries=[user("one")], request_id="first")
    found = await superuser.execute(
        "select count(distinct xmin::text), count(*) from entries where session_id = %s", (fresh.session_id,)
    )
    assert await found.fetchone() == (1, 2)


async def test_CreateTranscript__a_repeat_appends_nothing(fresh: Session) -> None:
    first = await fresh.create(entries=[user("one")], request_id="first")
    assert await fresh.create(entries=[user("one")], request_id="first") == first
    await fresh.append([user("two")])
    again = await fresh.create(entries=[user("one")], request_id="first")
    assert again.seq == first.seq
    assert await texts(fresh) == ["one", "two"]


async def test_CreateTranscript__at_once_appends_once(fresh: Session) -> None:
    heads = await asyncio.gather(*(fresh.create(entries=[user("one")], request_id="first") for _ in range(8)))
    assert {head.seq for head in heads} == {2}
    assert await texts(fresh) == ["one"]


async def test_CreateTranscript__appends_to_a_transcript_without_the_entries(fresh: Session) -> None:
    """An earlier call may have created it and met other settings."""
    await fresh.create()
    await fresh.create(entries=[user("one")], request_id="first")
    assert await texts(fresh) == ["one"]


async def test_CreateTranscript__other_entries_under_the_same_request_id(fresh: Session) -> None:
    await fresh.create(entries=[user("one")], request_id="first")
    with refused(Reason.REQUEST_ID_REUSED):
        await fresh.create(entries=[user("other")], request_id="first")
    assert await texts(fresh) == ["one"]


async def test_CreateTranscript__of_another_origin_appends_nothing(session: Session) -> None:
    await session.append([user("source")])
    fork = session.sibling()
    await fork.create(fork_of=session)
    with refused(Reason.ALREADY_EXISTS):
        await fork.create(entries=[user("one")], request_id="first")
    assert await texts(fork) == ["source"]


async def test_CreateTranscript__a_fork_has_its_entries_last(session: Session) -> None:
    await session.append([user("source")])
    fork = session.sibling()
    head = await fork.create(fork_of=session, entries=[user("one")], request_id="first")
    assert await texts(fork) == ["source", "one"]
    assert (await fork.create(fork_of=session, entries=[user("one")], request_id="first")) == head


async def test_CreateTranscript__entries_of_a_deleted_transcript(fresh: Session) -> None:
    await fresh.delete()
    with refused(Reason.TRANSCRIPT_DELETED):
        await fresh.create(entries=[user("one")], request_id="first")


async def test_CreateTranscript__entries_without_a_request_id(fresh: Session) -> None:
    with refused(Reason.INVALID_REQUEST):
        await fresh.create(entries=[user("one")])
    with refused(Reason.NOT_FOUND):
        await fresh.entries()


async def test_CreateTranscript__an_entry_that_needs_a_claim(fresh: Session) -> None:
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await fresh.create(entries=[assistant("one")], request_id="first")
    with refused(Reason.NOT_FOUND):
        await fresh.entries()


async def test_CreateTranscript__entries_are_masked_by_the_settings_of_now(fresh: Session) -> None:
    """Also when they have just changed: another process may know older ones."""
    for version, is_masked in ((2, True), (3, False), (4, True)):
        one = fresh.sibling()
        await fresh.prepare_tenant(version, mask_secrets=is_masked)
        await one.create(entries=[user(f"key {SECRET}")], request_id="first")
        assert (SECRET in (await texts(one))[0]) is not is_masked


async def test_CreateTranscript__of_a_purged_tenant_leaves_nothing(
    fresh: Session, superuser: Superuser
) -> None:
    while not (await fresh.purge_tenant()).done:
        pass
    with pytest.raises(MeshError) as caught:
        await fresh.create(entries=[user("one")], request_id="first")
    assert caught.value.reason is Reason.UNKNOWN_TENANT
    found = await superuser.execute("select from transcripts where session_id = %s", (fresh.session_id,))
    assert await found.fetchall() == []
