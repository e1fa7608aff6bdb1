"""DeleteTranscript and PurgeTenant: both remove all rows, and late requests restore none."""

import asyncio

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres import tenant_participant

from tests.support.tenancy import Purged
from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.tables import Superuser, rows_of


async def test_DeleteTranscript__removes_all_rows_and_may_be_repeated(
    session: Session, superuser: Superuser
) -> None:
    claim = await session.acquire(1)
    await session.append([user("hi")], key="k")
    for _ in range(2):
        await session.delete()
        with refused(Reason.NOT_FOUND):
            await session.entries()
        with refused(Reason.NOT_FOUND):
            await session.append([user("hi")], key="k")
        with refused(Reason.NOT_FOUND):
            await session.acquire_claim(claim)
        with refused(Reason.NOT_FOUND):
            await session.open_window(claim)
        with refused(Reason.NOT_FOUND):
            await session.release(claim)
        with refused(Reason.NOT_FOUND):
            await session.context()
    assert await rows_of(superuser, session.tenant_id) == {"transcripts": 1}


async def test_DeleteTranscript__late_requests_restore_nothing(service: Service, session: Session) -> None:
    never_created = session.sibling()
    await never_created.delete()
    await session.delete()
    child = session.sibling()
    await child.create()
    for gone in (session, never_created):
        with refused(Reason.TRANSCRIPT_DELETED) as facts:
            await gone.create()
        assert facts["session_id"] == gone.session_id
        with refused(Reason.TRANSCRIPT_DELETED):
            await gone.create(fork_of=child)
        with refused(Reason.NOT_FOUND):
            await gone.append([user("late")])
        with refused(Reason.NOT_FOUND):
            await session.sibling().create(fork_of=gone)
    assert service.session(session.tenant_id).session_id != session.session_id


async def test_DeleteTranscript__wins_against_racing_creations_and_appends(service: Service) -> None:
    for _ in range(20):
        session = service.session()

        async def create_and_append(one: Session = session) -> None:
            await one.create()
            await one.append([user("late")])

        done = await asyncio.gather(
            create_and_append(), session.delete(), create_and_append(), return_exceptions=True
        )
        refusals = {error.reason for error in done if isinstance(error, MeshError)}
        assert refusals <= {Reason.TRANSCRIPT_DELETED, Reason.NOT_FOUND}
        with refused(Reason.NOT_FOUND):
            await session.entries()
        with refused(Reason.TRANSCRIPT_DELETED):
            await session.create()


async def test_DeleteTranscript__of_many_entries_takes_several_transactions(
    session: Session, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        await session.append([user("x")] * 256)
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 1)
    purged = await session.purge_tenant()
    assert (purged.done, purged.row_count) == (False, tenant_participant.PAGE_ROWS)
    monkeypatch.undo()
    await session.create_anew()
    for _ in range(10):
        await session.append([user("x")] * 256)
    await session.delete()
    assert await rows_of(superuser, session.tenant_id) == {"tenants": 1, "tenant_work": 1, "transcripts": 1}


async def test_PurgeTenant__leaves_no_row_and_reports_when_it_is_done(
    session: Session, superuser: Superuser
) -> None:
    await session.prepare_tenant(3, mask_secrets=True)
    other = session.sibling()
    await other.create()
    gone = session.sibling()
    await gone.create()
    await gone.delete()
    stranger = session.service.session()
    await stranger.create()
    for one in (session, other, stranger):
        await one.append([user("hi")])
    first = await session.purge_tenant()
    assert first == Purged(True, {"entries": 4, "appends": 2, "transcripts": 3, "tenants": 1})
    assert await rows_of(superuser, session.tenant_id) == {"purged_tenants": 1}
    again = await session.purge_tenant()
    assert again == Purged(True, {})
    assert len(await stranger.entries()) == 2


async def test_PurgeTenant__is_resumed_and_nothing_begins_meanwhile(
    session: Session, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_participant, "PAGE_ROWS", 2)
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 2)
    claim = await session.acquire(1)
    for number in range(7):
        await session.append([user(str(number))])
    assert not (await session.purge_tenant()).done
    with refused(Reason.UNKNOWN_TENANT):
        await session.sibling().create()
    with refused(Reason.UNKNOWN_TENANT):
        await session.create()
    with refused(Reason.CONFLICT):
        await session.prepare_tenant(9, mask_secrets=False)
    for refusal in (
        session.page(),
        session.append([user("late")]),
        session.acquire_claim(claim),
        session.open_window(claim),
    ):
        with refused(Reason.NOT_FOUND):
            await refusal
    await session.delete()
    calls = 0
    while not (await session.purge_tenant()).done:
        calls += 1
        assert calls < 50
    assert calls >= 2
    assert await rows_of(superuser, session.tenant_id) == {"purged_tenants": 1}
    with refused(Reason.UNKNOWN_TENANT):
        await session.create()
    await session.prepare_tenant(1)
    await session.create()


async def test_PurgeTenant__removes_writes_that_were_in_progress(
    service: Service, superuser: Superuser
) -> None:
    for _ in range(10):
        session = service.session()
        await session.create()

        async def work(one: Session = session) -> None:
            for _ in range(20):
                await one.append([user("x")])
                await one.sibling().create()

        working = asyncio.gather(*(work() for _ in range(4)), return_exceptions=True)
        await session.append([user("x")])
        while not (await session.purge_tenant()).done:
            pass
        ended = await working
        assert {error.reason for error in ended if isinstance(error, MeshError)} <= {
            Reason.NOT_FOUND,
            Reason.UNKNOWN_TENANT,
        }
        orphans = await superuser.execute(
            "select count(*) from entries e where tenant_id = %s and not exists ("
            " select from transcripts t where t.tenant_id = e.tenant_id and t.session_id = e.session_id)",
            (session.tenant_id,),
        )
        assert await orphans.fetchone() == (0,)


async def test_PrepareTenant__an_older_version_changes_nothing(session: Session) -> None:
    assert await session.prepare_tenant(2, mask_secrets=True) == 2
    assert await session.prepare_tenant(1, mask_secrets=False) == 2
    await session.append([user("Bearer abcdef0123456789abcdef")])
    assert "abcdef" not in (await session.entries())[-1].body.message.content[0].text.text


async def test_CreateTranscript__fork_up_to_a_position(session: Session) -> None:
    await session.append([user("one"), user("two"), user("three")])
    child, behind = session.sibling(), session.sibling()
    await child.create(fork_of=session, up_to_seq=3)
    texts = [entry.body.message.content[0].text.text for entry in (await child.entries())[1:]]
    assert texts == ["one", "two"]
    await behind.create(fork_of=session, up_to_seq=4)
    assert len(await behind.entries()) == 4
