"""Budgets between the real services: session counts, the router asks it, and runners wait."""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token

from tests.support.runner.real_router import (
    CALL_MICROS,
    CALL_TOKENS,
    PRICE_VERSION,
    Family,
    Turn,
    open_role_provider,
    router_of,
)
from tests.support.runner.real_services import open_among
from tests.support.serving import client_tokens
from tests.support.session.budgets import Spending, wake
from tests.support.session.harness import OpenMesh
from tests.support.session.interrupts import interrupt
from tests.support.waiting import eventually

WAITING = session_pb2.RUN_STATE_WAITING_BUDGET
SUCCEEDED, FAILED = session_pb2.RUN_STATE_SUCCEEDED, session_pb2.RUN_STATE_FAILED
ANSWER, RESULT = message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT


@pytest.fixture
async def family(
    open_mesh: OpenMesh,
    peers: dict[str, str],
    migrated: dict[str, ServiceDsn],
    keys: Path,
    tmp_path: Path,
    empty_queue: None,
) -> AsyncIterator[Family]:
    """Start the real services with a real router, and a tenant of this test alone."""
    (tmp_path / "work").mkdir()
    async with open_role_provider() as (provider, url):
        router = router_of(migrated["model_router"].app, url, keys, tmp_path)
        async with open_among(
            open_mesh, peers, keys, tmp_path / "work", open_router=router, heartbeat_share=0.05
        ) as among:
            yield Family(among, provider)


def written(number: int) -> Turn:
    return "write_file", {"path": f"{number}.txt", "content": "text"}


async def state(family: Family, session_id: str) -> int:
    return (await family.among.mesh.get(session_id)).latest_run.state


async def until(family: Family, session_id: str, *states: int) -> session_pb2.Session:
    async def is_there() -> bool:
        return await state(family, session_id) in states

    await eventually(is_there, within_seconds=120)
    return await family.among.mesh.get(session_id)


async def roles(family: Family, session_id: str) -> list[int]:
    """Return the roles of the messages in the transcript, without those of the task."""
    mesh, transcript = family.among.mesh, family.among.transcript
    request = transcript_pb.ListEntriesRequest(session_id=session_id)
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        listed = await transcript.unary(
            TranscriptServiceStub(transcript.channel).ListEntries, request, timeout_seconds=60.0
        )
    found = [entry.body.message.role for entry in listed.entries]
    return [role for role in found if role in (ANSWER, RESULT)]


async def test_a_run_at_its_limit_waits_and_another_runner_finishes_it_when_the_limit_is_raised(
    family: Family,
) -> None:
    await family.put("worker", written(1), written(2), "All done.")
    budget = budget_pb2.Budget(max_model_call_count=2)
    spawned = await family.among.mesh.spawn(agent_id="worker", budget=budget)
    session_id = spawned.session_id
    async with family.among.start_runner():
        waiting = (await until(family, session_id, WAITING)).latest_run
    assert waiting.budget_session_id == session_id
    assert await roles(family, session_id) == [ANSWER, RESULT, ANSWER, RESULT]
    assert (len(family.provider.asked), waiting.attempt_count) == (2, 0)
    spending = Spending(family.among.mesh)
    async with family.among.start_runner():
        await spending.raise_limits(session_id, max_model_call_count=3)
        await wake(family.among.mesh)
        run = (await until(family, session_id, SUCCEEDED, FAILED)).latest_run
    assert (run.state, run.result_text) == (SUCCEEDED, "All done.")
    assert (run.epoch > waiting.epoch, run.attempt_count) == (True, 1)
    assert run.usage.input_token_count + run.usage.output_token_count == 3 * CALL_TOKENS
    assert (run.usage.cost_micros, run.usage.price_version) == (3 * CALL_MICROS, PRICE_VERSION)
    assert len(family.provider.asked) == 3
    usage = (await spending.budget(session_id)).usage
    assert (usage.model_call_count, usage.token_count, usage.cost_micros) == (
        3,
        3 * CALL_TOKENS,
        3 * CALL_MICROS,
    )


async def children_of(family: Family, session_id: str) -> list[str]:
    mesh = family.among.mesh
    request = session_pb.ListSessionsRequest(filter=f'parent_session_id = "{session_id}"')
    return [child.session_id for child in (await mesh.client(mesh.sessions.ListSessions, request)).sessions]


def wait_for_children(read: str, timeout_seconds: int = 1) -> Turn:
    children = list(dict.fromkeys(re.findall(r"ses_[0-9a-z]{26}", read)))
    return "sessions_wait", {"session_ids": children, "timeout_seconds": timeout_seconds}


@pytest.mark.parametrize("limit", ["calls", "cost"])
async def test_a_family_exceeds_its_budget_by_a_call_of_each_live_run_at_most(
    family: Family, limit: str
) -> None:
    """The parent waits without a runner, too. All of them go on when the limit is raised."""
    spawns: list[Turn] = [("sessions_spawn", {"task": "Write.", "agent_id": "child"})] * 2
    await family.put("parent", spawns, wait_for_children, "All are back.")
    await family.put("child", *(written(number) for number in range(4)), "Written.")
    # The children leave room for the parent's second call, which ends when they wait.
    parent_calls = family.provider.holds["child", 0] = asyncio.Event()
    children_wait = family.provider.holds["parent", 1] = asyncio.Event()
    affordable, live_count = 6, 3
    budget = budget_pb2.Budget(max_model_call_count=affordable)
    if limit == "cost":
        budget = budget_pb2.Budget(max_cost_micros=affordable * CALL_MICROS)
    parent = await family.among.mesh.spawn(agent_id="parent", budget=budget)
    spending = Spending(family.among.mesh)
    async with family.among.start_runner():
        await eventually(lambda: family.provider.asked.count("parent") == 2, within_seconds=120)
        parent_calls.set()
        children = await children_of(family, parent.session_id)
        assert len(children) == 2
        for child in children:
            waiting = await until(family, child, WAITING)
            assert waiting.latest_run.budget_session_id == parent.session_id
        children_wait.set()
        await until(family, parent.session_id, WAITING)
        used = (await spending.budget(parent.session_id)).usage
        most = affordable if limit == "calls" else affordable - 1 + live_count
        assert affordable <= used.model_call_count <= most
        assert used.cost_micros == used.model_call_count * CALL_MICROS
        assert len(family.provider.asked) == used.model_call_count
        await spending.raise_limits(
            parent.session_id, max_model_call_count=100, max_cost_micros=100 * CALL_MICROS
        )
        await wake(family.among.mesh)
        ended = await until(family, parent.session_id, SUCCEEDED, FAILED)
        assert (ended.latest_run.state, ended.latest_run.result_text) == (SUCCEEDED, "All are back.")
        for child in children:
            assert (await until(family, child, SUCCEEDED, FAILED)).latest_run.state == SUCCEEDED

        async def is_counted() -> bool:
            total = (await spending.usage(parent.session_id)).family.usage
            used = (await spending.budget(parent.session_id)).usage
            cost = len(family.provider.asked) * CALL_MICROS
            return (used.model_call_count * CALL_MICROS, used.cost_micros, total.cost_micros) == (cost,) * 3

        # A parent whose wait ended before its children did is called again with their results.
        await eventually(is_counted, within_seconds=60)


async def test_a_parent_gives_its_child_a_budget_and_waits_while_the_child_waits_for_more(
    family: Family,
) -> None:
    limits = {"max_model_calls": 1, "max_cost": 1.5, "max_minutes": 10}
    spawn = ("sessions_spawn", {"task": "Write.", "agent_id": "child", "budget": limits})
    until_it_ends = partial(wait_for_children, timeout_seconds=100)
    await family.put("parent", spawn, until_it_ends, "It is back.")
    await family.put("child", written(1), "Written.")
    child_waits = family.provider.holds["parent", 1] = asyncio.Event()
    parent = await family.among.mesh.spawn(agent_id="parent")
    spending = Spending(family.among.mesh)
    async with family.among.start_runner():
        await eventually(lambda: family.provider.asked.count("parent") == 2, within_seconds=120)
        [child] = await children_of(family, parent.session_id)
        assert (await until(family, child, WAITING)).latest_run.budget_session_id == child
        budget = (await spending.budget(child)).budget
        assert (budget.max_model_call_count, budget.max_cost_micros) == (1, 1_500_000)
        assert (budget.max_run_time.seconds, budget.max_token_count) == (600, 0)
        assert await state(family, parent.session_id) == session_pb2.RUN_STATE_RUNNING
        child_waits.set()
        await spending.raise_limits(child, max_model_call_count=2)
        await wake(family.among.mesh)
        ended = await until(family, parent.session_id, SUCCEEDED, FAILED)
        assert (ended.latest_run.state, ended.latest_run.result_text) == (SUCCEEDED, "It is back.")
        assert (await until(family, child, SUCCEEDED, FAILED)).latest_run.state == SUCCEEDED
    assert (await spending.usage(child)).family.usage.cost_micros == 2 * CALL_MICROS


async def test_a_budget_that_lets_no_run_wait_fails_it(family: Family) -> None:
    await family.put("worker", written(1), "Never said.")
    budget = budget_pb2.Budget(max_model_call_count=1, max_wait=Duration())
    spawned = await family.among.mesh.spawn(agent_id="worker", budget=budget)
    async with family.among.start_runner():
        run = (await family.among.ended(spawned.session_id)).latest_run
    assert (run.state, run.error_reason) == (FAILED, reason_pb2.REASON_SESSION_BUDGET_EXCEEDED)
    assert (run.usage.cost_micros, run.usage.price_version) == (CALL_MICROS, PRICE_VERSION)
    assert await roles(family, spawned.session_id) == [ANSWER, RESULT]


async def test_a_run_that_waits_for_its_budget_can_be_interrupted(family: Family) -> None:
    await family.put("worker", written(1), "Never said.")
    budget = budget_pb2.Budget(max_model_call_count=1)
    spawned = await family.among.mesh.spawn(agent_id="worker", budget=budget)
    async with family.among.start_runner():
        await until(family, spawned.session_id, WAITING)
        await interrupt(family.among.mesh, spawned.session_id)
        run = (await family.among.ended(spawned.session_id)).latest_run
    assert run.state == session_pb2.RUN_STATE_INTERRUPTED
    assert len(family.provider.asked) == 1
