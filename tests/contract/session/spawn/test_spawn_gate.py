"""The gate hooks judge each session once, for every kind of caller and after repeats."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.hook.v1.decision_pb2 import Deny, SpawnDecision
from spawnmesh.hook.v1.event_pb2 import BeforeSpawnEvent
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.remains import NOTHING, Remains
from tests.support.session.tables import jobs_of, swept
from tests.support.waiting import eventually

DEFAULT_GATES = 16
DENY = SpawnDecision(deny=Deny(reason="not on Mondays"))


class Gate(Plugin):
    """Remembers what it was asked."""

    def __init__(self, **said: Any) -> None:
        super().__init__(**said)
        self.asked: list[BeforeSpawnEvent] = []

    async def HandleBeforeSpawn(self, request: Any, context: Any) -> Any:
        self.asked.append(request.event)
        return await super().HandleBeforeSpawn(request, context)


async def test_SpawnSession__a_clients_session_and_its_child_are_asked_about(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    gate = Gate()
    async with plugged(mesh, peers, gate):
        parent = await mesh.spawn(label="top", attachments=[attachment()])
        child = await mesh.spawn_as(await mesh.claim(parent.session_id))
    asked = [
        (event.session_id, event.parent_session_id, event.depth, event.attachment_count)
        for event in gate.asked
    ]
    assert asked == [(parent.session_id, "", 0, 1), (child.session_id, parent.session_id, 1, 0)]
    assert [(event.label, event.task) for event in gate.asked] == [("top", ""), ("", "")]


async def test_SpawnSession__a_run_gets_the_reason_why_it_may_not_spawn(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    async with plugged(mesh, peers, Gate(on_spawn=DENY)):
        with pytest.raises(MeshError) as caught:
            await mesh.spawn_as(held)
    assert caught.value.reason is Reason.SPAWN_REFUSED
    assert "not on Mondays" in caught.value.message


@pytest.mark.parametrize("decision", [None, DENY], ids=["allowed", "denied"])
async def test_SpawnSession__a_repeat_asks_no_plugin(
    mesh: Mesh, peers: dict[str, str], decision: SpawnDecision | None
) -> None:
    gate = Gate(on_spawn=decision)
    request = pb.SpawnSessionRequest(request_id=uuid4().hex, task="count")
    async with plugged(mesh, peers, gate):
        answers = await asyncio.gather(
            *(mesh.client(mesh.sessions.SpawnSession, request) for _ in range(4)), return_exceptions=True
        )
        answers += await asyncio.gather(
            mesh.client(mesh.sessions.SpawnSession, request), return_exceptions=True
        )
    assert len(gate.asked) == 1
    spawned = {answer.session.session_id for answer in answers if not isinstance(answer, BaseException)}
    assert len(spawned) == (1 if decision is None else 0)


async def test_SpawnSession__what_is_refused_before_the_gate_is_not_asked_about(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    gate = Gate()
    async with plugged(mesh, peers, gate):
        with pytest.raises(MeshError):
            await mesh.spawn(agent_id="no-such-agent")
    assert gate.asked == []


async def test_SpawnSession__a_plugin_that_allowed_a_killed_spawn_gets_its_end(
    mesh: Mesh, peers: dict[str, str], postgres: Any, remains: Remains
) -> None:
    async def kill(session_id: str) -> None:
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))

    async with plugged(mesh, peers, Gate(meanwhile=kill)):
        with pytest.raises(MeshError) as caught:
            await mesh.spawn(attachments=[attachment()])
    assert caught.value.reason is Reason.SPAWN_FAILED
    # The kill does not know what the plugin says, and the saga does.
    assert sorted(await jobs_of(postgres, mesh.tenant)) == [
        "publish_run_end",
        "publish_spawn_failure",
    ]
    await swept(mesh, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__a_plugin_gets_the_end_of_a_spawn_that_was_cut_off_before_its_gate_was_recorded(
    open_mesh: OpenMesh, peers: dict[str, str], postgres: Any, remains: Remains
) -> None:
    async with (
        open_mesh(max_spawns_without_caller=0) as mesh,
        await psycopg.AsyncConnection.connect(remains.dsn) as link,
    ):
        await mesh.create_tenant()

        async def hold(session_id: str) -> None:
            await link.execute("select from session.sessions where session_id = %s for update", (session_id,))

        async with plugged(mesh, peers, Gate(meanwhile=hold)):
            spawning = asyncio.create_task(mesh.spawn(attachments=[attachment()]))
            await eventually(lambda: passing_waits(remains))
            spawning.cancel()
            await asyncio.wait([spawning])
        await link.rollback()  # The row is free now, and the undoing goes on.

        async def is_published() -> bool:
            return await jobs_of(postgres, mesh.tenant) == ["publish_run_end"]

        await eventually(is_published)
        await swept(mesh, postgres, mesh.tenant)
        assert await remains.of(mesh.tenant) == NOTHING


async def passing_waits(remains: Remains) -> bool:
    """Return whether pass_gate waits for a lock, after all parallel work is done."""
    waiting = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'gate_passed ='"
    )
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        row = await (await link.execute(waiting)).fetchone()
    return row is not None and row[0] > 0


async def test_SpawnSession__as_many_gates_as_a_tenant_may_have_are_asked_at_the_same_time(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    all_asked = asyncio.Event()

    async def wait_for_the_others(_session_id: str) -> None:
        if len(gate.asked) == DEFAULT_GATES:
            all_asked.set()
        await all_asked.wait()

    gate = Gate(meanwhile=wait_for_the_others)
    async with plugged(mesh, peers, gate, count=DEFAULT_GATES):
        await mesh.spawn()
        with pytest.raises(MeshError) as caught:
            async with plugged(mesh, peers, gate, count=DEFAULT_GATES + 1):
                pass
    assert caught.value.reason is Reason.GATE_COUNT_EXCEEDED
