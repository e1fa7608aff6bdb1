"""A spawn repeated, raced, or cut off answers the same each time, and never undoes what is done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.hook.v1.decision_pb2 import Deny, SpawnDecision
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import open_components
from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.domain.spawns import SpawnFailure
from spawnmesh_session.operations import spawn_repeat

from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.remains import NOTHING, Remains
from tests.support.session.spawn_commands import spawn_command
from tests.support.session.tables import swept
from tests.support.session.terminal_paths import BrokenCommit
from tests.support.waiting import eventually


async def refusal(mesh: Mesh, **fields: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(**fields)
    return caught.value


def parts_of_error(error: MeshError) -> tuple[Any, ...]:
    return (error.reason, error.status, error.message, error.facts, error.domain)


class ForgetfulDatabase:
    """Commits, and loses the answer of the n-th commit."""

    def __init__(self, database: Database, lost: int) -> None:
        self.database = database
        self.lost = lost
        self.count = 0

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Any]:
        async with self.database.transaction(tenant_id) as connection:
            yield connection
        self._committed()

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[Any]:
        async with self.database.pipelined(tenant_id) as connection:
            yield connection
        self._committed()

    def _committed(self) -> None:
        self.count += 1
        if self.count == self.lost:
            raise psycopg.OperationalError("the connection was lost")


@pytest.mark.parametrize("lost", [2, 3])
async def test_SpawnSession__spawn_whose_commit_was_done_and_its_answer_lost(
    mesh: Mesh, remains: Remains, lost: int, postgres: Any
) -> None:
    """The second commit passes the gate, the third activates the session.

    What is active is not undone, and what is not leaves nothing.
    """
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        database: Any = ForgetfulDatabase(components.database, lost)
        saga = replace(components.spawn_saga, database=database)
        command = spawn_command()
        with impersonate(mesh.tenant):
            if lost == 3:
                assert (await saga.spawn(mesh.tenant, command)).state == "ACTIVE"
                assert await remains.of(mesh.tenant) == {
                    "runs": 1, "queue": 1, "transcripts": 1, "entries": 3, "files": 1, "objects": 1,
                }  # fmt: skip
                return
            with pytest.raises(MeshError) as first:
                await saga.spawn(mesh.tenant, command)
            await swept(mesh, postgres, mesh.tenant)
            assert await remains.of(mesh.tenant) == NOTHING
            repeated = replace(command, spec=replace(command.spec, session_id=new_id(IdKind.SESSION)))
            again = await components.spawn_saga.spawn(mesh.tenant, repeated)
    assert (first.value.reason, first.value.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    assert first.value.facts["cause"] == Reason.DEPENDENCY_UNAVAILABLE
    assert again.session_id == repeated.spec.session_id, "the repeat starts over"


class AbsentSets:
    """The blob service is away: it stages nothing, and releases nothing before it is back."""

    def __init__(self) -> None:
        self.is_back, self.released = asyncio.Event(), list[str]()

    async def stage(self, *_arguments: Any) -> None:
        raise unavailable("attachment-blob")

    async def release(self, set_id: str) -> None:
        await self.is_back.wait()
        self.released.append(set_id)


async def test_SpawnSession__outage_is_reported_before_what_the_spawn_made_is_removed(
    mesh: Mesh, remains: Remains
) -> None:
    sets: Any = AbsentSets()
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        undo = replace(components.spawn_saga.undo, sets=sets)
        saga = replace(components.spawn_saga, sets=sets, undo=undo)
        command = spawn_command()
        with impersonate(mesh.tenant), pytest.raises(MeshError) as refused:
            async with asyncio.timeout(60):
                await saga.spawn(mesh.tenant, command)
        assert (refused.value.reason, refused.value.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
        assert sets.released == []
        sets.is_back.set()
        await eventually(lambda: sets.released)
        await eventually(lambda: has_no_transcript(remains, mesh.tenant))


async def has_no_transcript(remains: Remains, tenant_id: str) -> bool:
    return (await remains.of(tenant_id))["transcripts"] == 0


async def test_SpawnSession__refusal_that_could_not_be_stored_is_not_returned(
    mesh: Mesh, postgres: Any
) -> None:
    """A repeat starts over, since the refusal was not stored before the sweep undid the spawn."""
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        broken: Any = BrokenCommit(components.database, 1)
        saga = replace(components.spawn_saga, undo=replace(components.undo, database=broken))
        command = replace(spawn_command(), attachments=[attachment("../evil")])
        with impersonate(mesh.tenant):
            with pytest.raises(MeshError) as first:
                await saga.spawn(mesh.tenant, command)
            await swept(mesh, postgres, mesh.tenant)
            with pytest.raises(MeshError) as again:
                await components.spawn_saga.spawn(mesh.tenant, command)
    assert first.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert again.value.reason is Reason.ATTACHMENTS_INVALID_NAME


async def test_undo_of_a_session_that_is_spawned_leaves_it_alone(mesh: Mesh, remains: Remains) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    before = await remains.of(mesh.tenant)
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        with impersonate(mesh.tenant):
            await components.undo.undo(mesh.tenant, session.session_id, SpawnFailure.killed(), settled=False)
    assert await remains.of(mesh.tenant) == before
    assert (await mesh.get(session.session_id)).state == session_pb2.SESSION_STATE_ACTIVE


class CancelledBehind:
    """A database whose user is cancelled when what it asked for is done."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[Any]:
        async with self._database.pipelined(tenant_id) as connection:
            yield connection
        await self._cancelled()

    async def _cancelled(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_child", [False, True])
async def test_SpawnSession__spawn_that_is_cancelled_as_it_has_begun_is_undone_at_once(
    mesh: Mesh, remains: Remains, is_child: bool
) -> None:
    parent_session_id = (await mesh.spawn()).session_id if is_child else ""
    before = await remains.of(mesh.tenant)
    command = spawn_command()
    command = replace(command, spec=replace(command.spec, parent_session_id=parent_session_id))
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        database: Any = CancelledBehind(components.spawn_saga.database)
        repeated = replace(command, spec=replace(command.spec, session_id=new_id(IdKind.SESSION)))
        with impersonate(mesh.tenant):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(
                    replace(components.spawn_saga, database=database).spawn(mesh.tenant, command)
                )
            assert await remains.of(mesh.tenant) == before
            async with asyncio.timeout(60):
                again = await components.spawn_saga.spawn(mesh.tenant, repeated)
    assert again.session_id == repeated.spec.session_id, "the repeat starts over"


async def test_SpawnSession__refusals_are_the_same_again_in_every_part(
    mesh: Mesh, peers: dict[str, str], open_mesh: OpenMesh
) -> None:
    bad = {"request_id": uuid4().hex, "attachments": [attachment("../evil")]}
    assert parts_of_error(await refusal(mesh, **bad)) == parts_of_error(await refusal(mesh, **bad))
    denied = {"request_id": uuid4().hex}
    async with plugged(mesh, peers, Plugin(on_spawn=SpawnDecision(deny=Deny(reason="not now")))):
        first = await refusal(mesh, **denied)
    assert first.reason is Reason.SPAWN_REFUSED
    assert parts_of_error(await refusal(mesh, **denied)) == parts_of_error(first)
    down = {"request_id": uuid4().hex}  # The plugin is gone.
    assert parts_of_error(await refusal(mesh, **down)) == parts_of_error(await refusal(mesh, **down))


class KilledBehind:
    """Transcripts to which the task is appended, whereupon the session is killed."""

    def __init__(self, transcripts: Transcripts, mesh: Mesh) -> None:
        self._transcripts = transcripts
        self._mesh = mesh

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transcripts, name)

    async def append(self, session_id: str, *arguments: Any) -> None:
        await self._transcripts.append(session_id, *arguments)
        await self._mesh.client(self._mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))


async def test_SpawnSession__spawn_that_is_killed_right_before_its_activation_says_so(
    mesh: Mesh, remains: Remains
) -> None:
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        transcripts: Any = KilledBehind(components.spawn_saga.transcripts, mesh)
        with impersonate(mesh.tenant), pytest.raises(MeshError) as heard:
            await replace(components.spawn_saga, transcripts=transcripts).spawn(mesh.tenant, spawn_command())
    assert (heard.value.reason, heard.value.facts) == (Reason.SPAWN_FAILED, {"step": "kill"})
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__killed_on_the_way_says_so_first_and_again(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    async def kill(session_id: str) -> None:
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))

    fields = {"request_id": uuid4().hex, "attachments": [attachment()]}
    async with plugged(mesh, peers, Plugin(meanwhile=kill)):
        first = await refusal(mesh, **fields)
        again = await refusal(mesh, **fields)
    assert (first.reason, first.facts) == (Reason.SPAWN_FAILED, {"step": "kill"})
    assert parts_of_error(again) == parts_of_error(first)


async def test_SpawnSession__saga_ends_itself_before_the_reconciler_does(
    mesh: Mesh, peers: dict[str, str], open_mesh: OpenMesh, remains: Remains, postgres: Any
) -> None:
    async def hang(_session_id: str) -> None:
        await asyncio.sleep(3600)

    fields = {"request_id": uuid4().hex, "attachments": [attachment()]}
    async with open_mesh(spawn_deadline_seconds=0.8) as hasty:
        hasty.tenant = mesh.tenant
        async with plugged(hasty, peers, Plugin(meanwhile=hang)):
            first = await refusal(hasty, **fields)
            again = await refusal(hasty, **fields)
    assert first.reason is Reason.SPAWN_FAILED
    assert parts_of_error(again) == parts_of_error(first)
    await swept(mesh, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__repeat_hears_within_its_deadline_that_the_first_is_at_work(
    mesh: Mesh, peers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It waits for the rest of its time: two seconds. A slow machine has the others to answer.
    monkeypatch.setattr(spawn_repeat, "_ANSWER_SECONDS", (10.0, 10.0))
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def think(_session_id: str) -> None:
        arrived.set()
        await go_on.wait()

    request = pb.SpawnSessionRequest(request_id=uuid4().hex, task="count")
    async with plugged(mesh, peers, Plugin(meanwhile=think)):
        first = asyncio.create_task(mesh.client(mesh.sessions.SpawnSession, request))
        await arrived.wait()
        with pytest.raises(MeshError) as caught:
            await mesh.client(mesh.sessions.SpawnSession, request, timeout=12.0)
        go_on.set()
        spawned = (await first).session
    assert (caught.value.reason, caught.value.status) == (Reason.SPAWN_IN_PROGRESS, Status.ABORTED)
    assert caught.value.facts == {"session_id": spawned.session_id}


@pytest.mark.parametrize("limits", [{"max_live_child_count": 1}, {"max_queued_run_count": 2}])
async def test_SpawnSession__calls_at_once_for_the_last_place_have_one_answer(
    mesh: Mesh, limits: dict[str, Any]
) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(**limits))
    parent = await own.spawn()
    fields = {"request_id": uuid4().hex, "parent_session_id": parent.session_id}
    answers = await asyncio.gather(*(own.spawn(**fields) for _ in range(12)))
    assert len({answer.session_id for answer in answers}) == 1


async def test_SpawnSession__queue_limit_holds_for_calls_at_once(mesh: Mesh) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_queued_run_count=3))
    outcomes = await asyncio.gather(*(own.spawn() for _ in range(16)), return_exceptions=True)
    refused = [error for error in outcomes if isinstance(error, MeshError)]
    assert {error.reason for error in refused} == {Reason.RUN_QUEUE_FULL}
    assert len(outcomes) - len(refused) == 3


async def test_SpawnSession__order_of_attachments_is_part_of_the_payload(mesh: Mesh) -> None:
    files = [attachment("a.txt"), attachment("b.txt")]
    request_id = uuid4().hex
    await mesh.spawn(request_id=request_id, attachments=files)
    error = await refusal(mesh, request_id=request_id, attachments=files[::-1])
    assert error.reason is Reason.REQUEST_ID_REUSED


async def test_SpawnSession__task_with_nul_is_refused_before_anything_exists(mesh: Mesh) -> None:
    error = await refusal(mesh, task="a\x00b")
    assert error.reason is Reason.INVALID_REQUEST
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())
    assert list(listed.sessions) == []
