"""Every process of a mesh is killed while a run waits for its budget: budget and run remain."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.mesh.new_tenant import new_tenant
from tests.support.patient_callers import patient_callers
from tests.support.waiting import eventually

SPENDER = AgentProfile(agent_id="spender", system_prompt=f"You are the {CALLER}.", tools=["list_files"])
TASK = "list_files {}"
CALLS_OF_A_RUN = 2
"""A call that asks for the tool, and one that reads its result."""
BOUND_SECONDS = 120.0
"""The time from the change of the budget, or from the start of the mesh, to the answer of the run."""


def quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture
async def stack(fork_server: ForkServer) -> AsyncIterator[Stack]:
    """Start a mesh for this test alone, where the account of PostgreSQL can read."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-budgets-") as folder, patient_callers():
        async with open_stack(Path(folder) / "data", quiet, execute=fork_server.execute) as mesh:
            yield mesh


@asynccontextmanager
async def open_client(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    async with connect_wire(
        session=stack.targets["session"],
        transcript=stack.targets["transcript"],
        token=stack.client_token(tenant),
    ) as mesh:
        yield mesh


async def kill_everything(stack: Stack) -> None:
    """Kill every process of the mesh by SIGKILL, also PostgreSQL and S3, and start all again."""
    killed = set(stack.pids.values())
    for process in (*stack.processes.values(), stack.postgres.process, *stack.s3.processes):
        await process.kill()
    await asyncio.gather(*(stack.restart_storage(part) for part in (stack.postgres, stack.s3)))
    await asyncio.gather(*(stack.restart(name) for name in stack.processes))
    await stack.until_connected()
    assert not killed & set(stack.pids.values())


async def waiting(mesh: WireMesh) -> session_pb2.Run:
    """Return the run of a new session, once it waits for a budget of one model call."""
    budget = pb.Budget(max_model_call_count=1, max_token_count=1_000_000)
    session = await mesh.spawn(TASK, agent_id=SPENDER.agent_id, budget=budget)

    async def waits() -> bool:
        run = (await mesh.session(session.session_id)).latest_run
        return run.state == session_pb2.RUN_STATE_WAITING_BUDGET

    await eventually(waits, within_seconds=BOUND_SECONDS)
    return (await mesh.session(session.session_id)).latest_run


async def budget_of(mesh: WireMesh, session_id: str) -> pb.SessionBudget:
    peer = mesh.service("session")
    request = pb.GetSessionUsageRequest(session_id=session_id)
    answer = await peer.unary(BudgetServiceStub(peer.channel).GetSessionUsage, request)
    (budget,) = answer.budgets
    found: pb.SessionBudget = budget
    return found


async def raise_calls(mesh: WireMesh, session_id: str) -> None:
    peer = mesh.service("session")
    request = pb.UpdateBudgetRequest(
        session_id=session_id,
        budget=pb.Budget(max_model_call_count=CALLS_OF_A_RUN),
        update_mask=FieldMask(paths=["max_model_call_count"]),
    )
    await peer.unary(BudgetServiceStub(peer.channel).UpdateBudget, request)


async def until_succeeded(mesh: WireMesh, session_id: str) -> session_pb2.Run:
    async def ended() -> bool:
        return (await mesh.wait(session_id, 5)).done

    await eventually(ended, within_seconds=BOUND_SECONDS)
    run = (await mesh.session(session_id)).latest_run
    assert run.state == session_pb2.RUN_STATE_SUCCEEDED, run
    return run


async def answer_count(mesh: WireMesh, session_id: str) -> int:
    """Return the number of answers of the model in the transcript."""
    entries = [entry async for entry in mesh.transcript(session_id)]
    return sum(entry.body.message.role == ROLE_ASSISTANT for entry in entries)


async def events_of(stack: Stack, tenant: str, session_id: str) -> list[tuple[str, str]]:
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection:
        cursor = await connection.execute(
            "select kind, run_state from session.session_events where tenant_id = %s and session_id = %s"
            " order by number",
            (tenant, session_id),
        )
        return [(row[0], row[1]) for row in await cursor.fetchall()]


async def open_call_count(stack: Stack, tenant: str) -> int:
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection:
        cursor = await connection.execute(
            "select count(*) from session.model_calls where tenant_id = %s and not is_reported", (tenant,)
        )
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.timeout(600)
async def test_run_that_waits_for_its_budget_goes_on_after_every_process_was_killed(stack: Stack) -> None:
    """One budget is raised before the kill, when no runner can take the run, and one after it. What
    is counted is what the runs have used, to the token.
    """
    tenant = await new_tenant(stack)
    async with open_client(stack, tenant) as mesh:
        await mesh.put_agent(SPENDER)
        unraised, raised = await waiting(mesh), await waiting(mesh)
        before = await budget_of(mesh, unraised.session_id)
        assert list(before.reached_limits) == [pb.BUDGET_LIMIT_MODEL_CALLS]
        await stack.processes["runner"].kill()
        await raise_calls(mesh, raised.session_id)
    await kill_everything(stack)
    async with open_client(stack, tenant) as mesh:
        assert await budget_of(mesh, unraised.session_id) == before
        assert (await mesh.session(unraised.session_id)).latest_run == unraised
        await raise_calls(mesh, unraised.session_id)
        for run in (unraised, raised):
            ended = await until_succeeded(mesh, run.session_id)
            assert ended.run_id == run.run_id
            used = (await budget_of(mesh, run.session_id)).usage
            assert used.model_call_count == CALLS_OF_A_RUN == await answer_count(mesh, run.session_id)
            assert used.token_count == ended.usage.input_token_count + ended.usage.output_token_count > 0
            assert used.cost_micros == ended.usage.cost_micros > 0
            events = await events_of(stack, tenant, run.session_id)
            assert events.count(("RUN", "WAITING_BUDGET")) == 1
            assert [kind for kind, _ in events].count("BUDGET_CHANGED") == 1
        assert await open_call_count(stack, tenant) == 0
