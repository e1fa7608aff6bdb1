"""WatchActivities: live from any replica, each activity once, and only those of the caller's
tenant."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from psycopg.conninfo import make_conninfo
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh.transcript.v1.activity_service_pb2_grpc import ActivityServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import open_database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.jobs.forget_activities import forget_activities
from spawnmesh_transcript.operations.activity_recorder import open_activity_recorder

from tests.support.attachment_blob.fixtures import BlobService, Tenant
from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.tables import Superuser, rows_of
from tests.support.transcript.tier import (
    NO_TAIL,
    Tiered,
    answering,
    calling,
    long_text,
)

SECONDS = 60.0


class Watch:
    """The answers of one WatchActivities call."""

    def __init__(self, answers: AsyncIterator[pb.WatchActivitiesResponse]) -> None:
        self._answers = answers
        self.position = 0

    async def next(self) -> list[pb.Activity]:
        """Return the activities of the next answer."""
        async with asyncio.timeout(SECONDS):
            answer = await anext(self._answers)
        self.position = answer.position
        return list(answer.activities)

    async def take(self, count: int) -> list[pb.Activity]:
        """Return this number of activities, from as many answers as necessary."""
        taken: list[pb.Activity] = []
        while len(taken) < count:
            taken += await self.next()
        return taken


@asynccontextmanager
async def watching(
    session: Session, *, whole_tenant: bool = False, after: int = 0, token: str = ""
) -> AsyncIterator[Watch]:
    request = pb.WatchActivitiesRequest(
        session_id="" if whole_tenant else session.session_id, after_position=after
    )
    peer = session.service.peer
    with use_token(token or session.client_token()):
        answers = peer.stream(
            ActivityServiceStub(peer.channel).WatchActivities, request, timeout_seconds=3 * SECONDS
        )
        async with aclosing(answers):
            yield Watch(answers)


def kinds(activities: list[pb.Activity]) -> list[str | None]:
    return [activity.WhichOneof("what") for activity in activities]


def key_of(session: Session) -> Key:
    return Key(session.tenant_id, session.session_id)


def failed(seq: int) -> pb.Activity:
    return pb.Activity(
        failed=pb.Failed(action=pb.FAILED_ACTION_TIER, reason="DEPENDENCY_UNAVAILABLE", seq=seq)
    )


async def test_WatchActivities__reports_stubs_and_reads_of_their_files(
    tiered: Tiered,
) -> None:
    claim = await tiered.session.acquire(1)
    async with watching(tiered.session) as watch:
        assert await watch.next() == []
        entries = [calling("c", "exec", {"path": "/a"}), answering("c", text := long_text("a"), name="exec")]
        seq = (await tiered.session.append([*entries, assistant("end")], claim=claim)).entries[1].seq
        [activity] = await watch.take(1)
        entry = (await tiered.session.entries(after_seq=seq - 1))[0]
        [in_context] = (await tiered.context(tail=NO_TAIL)).stubbed
        stubbed = activity.stubbed
        assert (stubbed.seq, stubbed.tool_name, stubbed.size_bytes) == (seq, "exec", len(text))
        assert (list(stubbed.file_ids), stubbed.full_token_count) == (
            list(in_context.file_ids),
            entry.token_count,
        )
        assert 0 < stubbed.stub_token_count < 100
        assert activity.session_id == tiered.session.session_id
        assert activity.create_time.ToSeconds() >= entry.create_time.ToSeconds()

        [file_id] = stubbed.file_ids
        await tiered.describe(file_id)
        await tiered.describe(file_id, expand=True, bytes={"offset": 5, "length": 7})
        run_token = tiered.session.run_token(claim)
        lines = await tiered.describe(file_id, expand=True, lines={"first_line": 1}, token=run_token)
        reads = [one.drilled_down for one in await watch.take(3)]
        assert [(read.part, read.caller, read.size_bytes) for read in reads] == [
            (pb.FILE_PART_NONE, policy_pb2.CALLER_CLIENT, 0),
            (pb.FILE_PART_BYTES, policy_pb2.CALLER_CLIENT, 7),
            (pb.FILE_PART_LINES, policy_pb2.CALLER_RUN, len(lines.content.data)),
        ]
        assert {read.file_id for read in reads} == {file_id}


async def test_WatchActivities__reports_a_failed_put_of_a_payload_and_a_later_success(
    tiered: Tiered, cut_off: Tiered
) -> None:
    claim = await tiered.session.acquire(1)
    [seq] = await cut_off.converse(claim, long_text("a"))
    async with watching(tiered.session) as watch:
        [activity] = await watch.take(1)
        assert activity.failed == pb.Failed(
            action=pb.FAILED_ACTION_PUT_PAYLOAD, reason="DEPENDENCY_UNAVAILABLE", seq=seq
        )
        await cut_off.converse(claim, long_text("b"))
        await tiered.converse(claim, long_text("c"))
        assert kinds(await watch.take(3)) == ["stubbed"] * 3, (
            "a failure is told once, and not each time it is tried"
        )


async def test_WatchActivities__a_result_with_several_files_is_one_activity(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    texts = [long_text("a"), long_text("b")]
    await tiered.session.append([calling("c", "read", {}), answering("c", *texts)], claim=claim)
    async with watching(tiered.session) as watch:
        [activity] = await watch.take(1)
        assert (len(activity.stubbed.file_ids), activity.stubbed.size_bytes) == (2, sum(map(len, texts)))


async def test_WatchActivities__sends_activities_of_another_replica_at_once(
    service: Service, tiered: Tiered
) -> None:
    claim = await tiered.session.acquire(1)
    elsewhere = Session(service, tiered.session.tenant_id, tiered.session.session_id)
    async with watching(elsewhere, whole_tenant=True) as watch:
        await watch.next()
        for number in range(3):
            begin = asyncio.get_running_loop().time()
            await tiered.converse(claim, long_text(f"a{number}"))
            assert kinds(await watch.take(1)) == ["stubbed"]
            assert asyncio.get_running_loop().time() - begin < 4, "announced, and not found by looking again"


async def test_WatchActivities__resumes_at_any_position_and_sends_each_once(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, *(long_text(str(number)) for number in range(4)))
    async with watching(tiered.session) as watch:
        activities = await watch.take(4)
        assert watch.position == activities[-1].position
    positions = [activity.position for activity in activities]
    assert positions == sorted(set(positions))
    for place, position in enumerate(positions):
        async with watching(tiered.session, after=position) as watch:
            assert await watch.next() == activities[place + 1 :]


async def test_WatchActivities__sends_only_new_ones_without_a_position(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"))
    async with watching(tiered.session) as watch:
        [old] = await watch.take(1)
    async with watching(tiered.session, after=-1) as watch:
        assert await watch.next() == []
        assert watch.position == old.position
        await tiered.converse(claim, long_text("b"))
        [new] = await watch.take(1)
        assert new.position > old.position


async def test_WatchActivities__one_session_or_the_whole_tenant_but_no_other_tenant(
    service: Service, tiered: Tiered, blobs: BlobService
) -> None:
    session = tiered.session
    sibling = session.sibling()
    await sibling.create()
    stranger = tiered.session.service.session()
    await stranger.create()
    foreign = Tiered(stranger, Tenant(blobs, stranger.tenant_id))
    await foreign.blobs.prepare()
    await foreign.set_tier(1, is_on=True)
    for one in (tiered, tiered.on(sibling), foreign):
        await one.converse(await one.session.acquire(1), long_text("a"))
    async with watching(session) as watch, watching(session, whole_tenant=True) as tenant_watch:
        assert {one.session_id for one in await watch.take(1)} == {session.session_id}
        assert {one.session_id for one in await tenant_watch.take(2)} == {
            session.session_id,
            sibling.session_id,
        }
    async with watching(stranger, whole_tenant=True) as watch:
        [activity] = await watch.take(1)
        assert (activity.session_id, activity.position) == (stranger.session_id, 1), (
            "others' do not move its positions"
        )
    of_stranger = Session(service, session.tenant_id, stranger.session_id)
    with refused(Reason.NOT_FOUND):
        async with watching(of_stranger) as watch:
            await watch.next()


async def test_WatchActivities__is_for_clients(session: Session) -> None:
    claim = await session.acquire(1)
    for token in (session.run_token(claim), session.service_token()):
        with refused(Reason.CALLER_NOT_ALLOWED):
            async with watching(session, token=token) as watch:
                await watch.next()


async def test_WatchActivities__misses_none_of_many_recorded_at_once(session: Session) -> None:
    """No watcher sees a new position below one that it has seen, in whatever order transactions
    commit."""
    count = 150
    async with (
        open_database(session.service.dsn.app, name="one", max_connections=8) as one,
        open_database(session.service.dsn.app, name="two", max_connections=8) as two,
        open_activity_recorder(one) as at_one,
        open_activity_recorder(two) as at_two,
        watching(session, whole_tenant=True) as watch,
    ):

        async def record() -> None:
            async with asyncio.TaskGroup() as tasks:
                turns = asyncio.Semaphore(12)

                async def one_of_them(number: int) -> None:
                    async with turns:
                        await (at_one if number % 2 else at_two).record(key_of(session), failed(number))

                for number in range(count):
                    tasks.create_task(one_of_them(number))

        recording = asyncio.create_task(record())
        seen = await watch.take(count)
        await recording
        assert sorted(activity.failed.seq for activity in seen) == list(range(count))
        assert [activity.position for activity in seen] == list(range(1, count + 1))


async def test_WatchActivities__a_long_history_comes_in_pages(session: Session) -> None:
    async with (
        open_database(session.service.dsn.app, name="one", max_connections=2) as database,
        open_activity_recorder(database) as activities,
    ):
        for number in range(450):
            activities.record_later(key_of(session), failed(number))
    async with watching(session) as watch:
        pages = [await watch.next() for _ in range(3)]
    assert [len(page) for page in pages] == [200, 200, 50]
    assert [one.failed.seq for page in pages for one in page] == list(range(450))


async def test_DeleteTranscript__deletes_its_activities_and_ends_its_watchers(
    tiered: Tiered, superuser: Superuser
) -> None:
    claim = await tiered.session.acquire(1)
    sibling = tiered.session.sibling()
    await sibling.create()
    await tiered.converse(claim, long_text("a"))
    async with watching(tiered.session) as watch:
        [activity] = await watch.take(1)
        await tiered.session.delete()
        with refused(Reason.NOT_FOUND):
            await watch.next()
    async with (
        open_database(tiered.session.service.dsn.app, name="late", max_connections=1) as database,
        open_activity_recorder(database) as activities,
    ):
        await activities.record(key_of(tiered.session), failed(1))
        assert "activities" not in await rows_of(superuser, tiered.session.tenant_id)
        await activities.record(key_of(sibling), failed(2))
    async with watching(sibling, after=activity.position) as watch:
        assert [one.failed.seq for one in await watch.next()] == [2], "positions go on"


async def test_DeleteTranscript__racing_records_leave_nothing(session: Session, superuser: Superuser) -> None:
    async with (
        open_database(session.service.dsn.app, name="racing", max_connections=6) as database,
        open_activity_recorder(database) as activities,
    ):
        for _ in range(15):
            doomed = session.sibling()
            await doomed.create()
            recording = [activities.record(key_of(doomed), failed(number)) for number in range(4)]
            await asyncio.gather(doomed.delete(), *recording)
    assert "activities" not in await rows_of(superuser, session.tenant_id)


async def test_PurgeTenant__deletes_all_activities(tiered: Tiered, superuser: Superuser) -> None:
    await tiered.converse(await tiered.session.acquire(1), long_text("a"))
    async with watching(tiered.session) as watch:
        await watch.take(1)
    while not (await tiered.session.purge_tenant()).done:
        pass
    assert await rows_of(superuser, tiered.session.tenant_id) == {"purged_tenants": 1}


async def test_PurgeTenant__a_late_record_leaves_nothing(session: Session, superuser: Superuser) -> None:
    async with (
        open_database(session.service.dsn.app, name="late", max_connections=1) as database,
        open_activity_recorder(database) as activities,
    ):
        await activities.record(key_of(session), failed(1))
        while not (await session.purge_tenant()).done:
            pass
        await activities.record(key_of(session), failed(2))
    assert await rows_of(superuser, session.tenant_id) == {"purged_tenants": 1}


async def test_forget_activities__after_seven_days(session: Session, superuser: Superuser) -> None:
    tenant_id = session.tenant_id
    other = session.service.session()
    await other.create()
    async with (
        open_database(session.service.dsn.app, name="forget", max_connections=1) as database,
        open_activity_recorder(database) as activities,
    ):
        for number in (1, 2, 3):
            await activities.record(key_of(session), failed(number))
        await activities.record(key_of(other), failed(4))
        aged = (
            "update activities set create_time = now() - %s::interval where tenant_id = %s and position = %s"
        )
        await superuser.execute(aged, ("7 days 1 minute", tenant_id, 1))
        await superuser.execute(aged, ("6 days 23 hours", tenant_id, 2))
        await superuser.execute(aged, ("8 days", other.tenant_id, 1))
        assert await forget_activities(database, tenant_id) == 1
        assert await forget_activities(database, tenant_id) == 0
        await superuser.execute(aged, ("8 days", tenant_id, 2))
        await superuser.execute(aged, ("8 days", tenant_id, 3))
        assert await forget_activities(database, tenant_id) == 2
        await activities.record(key_of(session), failed(5))
    async with watching(session, after=3) as watch:
        assert [one.failed.seq for one in await watch.next()] == [5], "who has read all before misses nothing"
    async with watching(other) as watch:
        assert len(await watch.next()) == 1


async def test_record__a_failure_is_not_raised(session: Session) -> None:
    nowhere = make_conninfo(session.service.dsn.app, dbname="nowhere")
    async with (
        open_database(nowhere, name="nowhere", max_connections=1, wait_seconds=0.2) as database,
        open_activity_recorder(database) as activities,
    ):
        activities.record_later(key_of(session), failed(1))
        await activities.record(key_of(session), failed(2))


async def test_open_activities__closes_in_the_middle_of_an_announcement(session: Session) -> None:
    for _ in range(10):
        async with (
            asyncio.timeout(SECONDS),
            open_database(session.service.dsn.app, name="closing", max_connections=1) as database,
            open_activity_recorder(database) as activities,
        ):
            activities.record_later(key_of(session), failed(1))
            await activities.record(key_of(session), failed(2))
