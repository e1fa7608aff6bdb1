"""In an outage spawns are refused before anything is made for them, until one succeeds again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import open_components
from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.domain.sessions import Session, SessionState
from spawnmesh_session.operations.spawn_breaker import SpawnBreaker
from spawnmesh_session.operations.spawn_saga import SpawnCommand, SpawnSaga

from tests.support.session.calls import another
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.spawn_commands import spawn_command
from tests.support.waiting import eventually

FAILURE_COUNT = 5
"""Failures in a row after which spawns are refused at once."""


class Sets:
    """The sets of the blob service, which stages none while it is away."""

    def __init__(self, behind: AttachmentSets) -> None:
        self._behind, self.is_away, self.stage_count = behind, False, 0
        self.releases = True
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def stage(self, *arguments: Any) -> Any:
        self.stage_count += 1
        await self.goes_on.wait()
        if self.is_away:
            raise unavailable("attachment-blob")
        return await self._behind.stage(*arguments)

    async def release(self, set_id: str) -> None:
        if not self.releases:
            raise unavailable("attachment-blob")
        await self._behind.release(set_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


class Spawner:
    """A saga with these sets, and a breaker whose time is `now`."""

    def __init__(self, tenant_id: str, saga: SpawnSaga) -> None:
        self.now = 0.0
        self.sets: Any = Sets(saga.sets)
        self._tenant_id = tenant_id
        undo = replace(saga.undo, sets=self.sets)
        self._saga = replace(saga, sets=self.sets, undo=undo, breaker=SpawnBreaker(lambda: self.now))

    async def spawn(self, command: SpawnCommand, *, tenant_id: str = "") -> Session:
        tenant_id = tenant_id or self._tenant_id
        with impersonate(tenant_id):
            return await self._saga.spawn(tenant_id, command)

    async def refusal(self, command: SpawnCommand, *, tenant_id: str = "") -> MeshError:
        with pytest.raises(MeshError) as caught:
            await self.spawn(command, tenant_id=tenant_id)
        return caught.value

    async def fail(self, count: int = FAILURE_COUNT) -> None:
        """Let spawns fail at the sets that are away."""
        self.sets.is_away = True
        for _ in range(count):
            refused = await self.refusal(spawn_command())
            assert refused.facts["step"] == "provision"
            assert refused.facts["cause"] == Reason.DEPENDENCY_UNAVAILABLE


@pytest.fixture
async def spawner(mesh: Mesh) -> AsyncIterator[Spawner]:
    """The saga of a replica of its own."""
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        yield Spawner(mesh.tenant, components.spawn_saga)


async def session_count(mesh: Mesh, remains: Remains) -> int:
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        rows = await link.execute("select count(*) from session.sessions where tenant_id = %s", [mesh.tenant])
        found = await rows.fetchone()
    assert found is not None
    return int(found[0])


async def tenant_with(mesh: Mesh, **settings: Any) -> Mesh:
    """Create another tenant."""
    own = another(mesh)
    await own.create_tenant(settings=TenantSettings(**settings))
    return own


async def both_at_the_sets(spawner: Spawner) -> list["asyncio.Task[Session]"]:
    """Spawn twice at the same time, the second one when the first one stages its files."""
    spawner.sets.goes_on.clear()
    tasks = []
    for _ in range(2):
        before = spawner.sets.stage_count
        tasks.append(asyncio.create_task(spawner.spawn(spawn_command())))
        await eventually(lambda before=before: spawner.sets.stage_count == before + 1)
    spawner.sets.goes_on.set()
    return tasks


def is_refused_at_once(error: MeshError) -> bool:
    return error.message.startswith("the spawn was not begun: ")


async def test_SpawnSession__in_an_outage_nothing_is_made_for_a_spawn(
    mesh: Mesh, spawner: Spawner, remains: Remains
) -> None:
    await spawner.fail()
    before, stage_count = await session_count(mesh, remains), spawner.sets.stage_count
    assert before == FAILURE_COUNT

    refused = await spawner.refusal(spawn_command())

    assert is_refused_at_once(refused)
    assert (refused.reason, refused.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    assert refused.facts == {"dependency": "attachment-blob", "cause": "DEPENDENCY_UNAVAILABLE"}
    assert refused.retry_after_seconds == 1.0
    assert spawner.sets.stage_count == stage_count
    assert await session_count(mesh, remains) == before


async def test_SpawnSession__in_an_outage_one_spawn_a_second_is_tried(spawner: Spawner) -> None:
    await spawner.fail()
    command = spawn_command()
    for _ in range(3):
        assert is_refused_at_once(await spawner.refusal(command))
        spawner.now += 1.0
        assert not is_refused_at_once(await spawner.refusal(command))
    spawner.sets.is_away = False
    assert is_refused_at_once(await spawner.refusal(command))
    spawner.now += 1.0
    for each in (command, spawn_command()):
        assert (await spawner.spawn(each)).state == SessionState.ACTIVE


async def test_SpawnSession__in_an_outage_nothing_is_tried_beside_a_trial(spawner: Spawner) -> None:
    await spawner.fail()
    spawner.now += 1.0
    spawner.sets.goes_on.clear()
    trial, before = asyncio.create_task(spawner.refusal(spawn_command())), spawner.sets.stage_count
    await eventually(lambda: spawner.sets.stage_count == before + 1)
    assert is_refused_at_once(await spawner.refusal(spawn_command()))
    spawner.sets.goes_on.set()
    assert not is_refused_at_once(await trial)


async def test_SpawnSession__spawns_that_need_something_else_are_tried(mesh: Mesh, spawner: Spawner) -> None:
    await spawner.fail()
    assert (await spawner.spawn(spawn_command(has_file=False))).state == SessionState.ACTIVE
    assert is_refused_at_once(await spawner.refusal(spawn_command()))
    other = await tenant_with(mesh)
    assert not is_refused_at_once(await spawner.refusal(spawn_command(), tenant_id=other.tenant))


async def test_SpawnSession__in_an_outage_a_known_request_id_gets_its_session(spawner: Spawner) -> None:
    command = spawn_command()
    known = await spawner.spawn(command)
    await spawner.fail()
    again = spawn_command()
    repeated = replace(command, spec=replace(command.spec, session_id=again.spec.session_id))
    assert (await spawner.spawn(repeated)).session_id == known.session_id


async def test_SpawnSession__failures_of_their_own_or_between_successes_are_no_outage(
    spawner: Spawner,
) -> None:
    for _ in range(FAILURE_COUNT + 1):
        refused = await spawner.refusal(replace(spawn_command(), attachments=[attachment("../evil")]))
        assert refused.reason is Reason.ATTACHMENTS_INVALID_NAME
    await spawner.fail(FAILURE_COUNT - 1)
    spawner.sets.is_away = False
    await spawner.spawn(spawn_command())
    await spawner.fail()


async def test_SpawnSession__an_answer_of_the_dependency_ends_the_outage_even_if_it_refuses(
    spawner: Spawner,
) -> None:
    await spawner.fail()
    spawner.sets.is_away = False
    spawner.now += 1.0
    refused = await spawner.refusal(replace(spawn_command(), attachments=[attachment("../evil")]))
    assert refused.reason is Reason.ATTACHMENTS_INVALID_NAME
    assert (await spawner.spawn(spawn_command())).state == SessionState.ACTIVE


async def test_SpawnSession__what_ends_before_the_failed_step_is_no_trial(spawner: Spawner) -> None:
    """A client that repeats a spawn without an agent does not keep the others from being tried."""
    first = spawn_command()
    known = await spawner.spawn(first)
    await spawner.fail()
    spawner.sets.is_away = False
    spawner.now += 1.0
    command = spawn_command()
    unknown = replace(command, spec=replace(command.spec, agent_id="nobody"))
    assert (await spawner.refusal(unknown)).reason is Reason.UNKNOWN_AGENT
    repeated = replace(command, spec=replace(command.spec, request_id=first.spec.request_id))
    assert (await spawner.spawn(repeated)).session_id == known.session_id
    assert (await spawner.spawn(spawn_command())).state == SessionState.ACTIVE


async def test_SpawnSession__an_outage_is_forgotten_when_nothing_was_spawned_for_a_while(
    spawner: Spawner,
) -> None:
    await spawner.fail()
    spawner.sets.is_away = False
    spawner.now += 10.0
    first, second = await both_at_the_sets(spawner)
    assert {(await first).state, (await second).state} == {SessionState.ACTIVE}


async def test_SpawnSession__failed_spawns_take_no_place_in_the_queue(
    mesh: Mesh, spawner: Spawner, remains: Remains
) -> None:
    """Their files are removed later, when the blob service is back."""
    own = await tenant_with(mesh, max_queued_run_count=2)
    spawner.sets.releases = False
    for _ in range(FAILURE_COUNT):
        spawner.sets.is_away = True
        await spawner.refusal(spawn_command(), tenant_id=own.tenant)
    assert (await remains.of(own.tenant))["queue"] == FAILURE_COUNT
    for _ in range(2):
        await spawner.spawn(spawn_command(has_file=False), tenant_id=own.tenant)
    refused = await spawner.refusal(spawn_command(has_file=False), tenant_id=own.tenant)
    assert refused.reason is Reason.RUN_QUEUE_FULL
