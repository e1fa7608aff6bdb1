"""Watchers see what plugins decide about a run, in order, while it goes on."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_client import (
    Agent,
    Approval,
    Mesh,
    Plugin,
    Session,
    SessionChanged,
    SessionEvent,
    connect,
)
from spawnmesh_client.resource_views import Grant, HookKind
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack

from tests.support.commands import Commands
from tests.support.hook.plugin_process import serving
from tests.support.waiting import eventually

GRANTS = (Grant.CONVERSATION_ACCESS, Grant.FINALIZE_CONTROL, Grant.PROMPT_INJECTION)
REASON = "words of a plugin"
PLUGINS = {
    "picker": ("before_model_resolve", f"use_model('{SCRIPTED_AGENT}')"),
    "memory": (
        "before_prompt_build",
        f"change_prompt(context='{REASON}', tools=['list_files', 'read_file', 'write_file'])",
    ),
    "scrubber": (
        "before_tool_call",
        "rewrite({'path': 'public.txt', 'content': 'x'}) if 'private' in event.arguments_json else None",
    ),
    "risk-policy": ("before_tool_call", f"block('{REASON}') if event.tool_name == 'list_files' else None"),
    "cfo": ("before_tool_call", f"require_approval('{REASON}') if event.tool_name == 'read_file' else None"),
    "keeper": ("before_agent_finalize", f"finalize('{REASON}')"),
}
TASK = """
list_files {}
write_file {"path": "private.txt", "content": "x"}
write_file {"path": "a.txt", "content": "x"}
read_file {"path": "a.txt"}
"""
PREPARED = [
    f"before_model_resolve: picker chose the model {SCRIPTED_AGENT}",
    "before_prompt_build: memory added context and took a tool away",
]
TOLD = [
    *PREPARED,
    "before_tool_call: risk-policy blocked the call of list_files",
    *PREPARED,
    "before_tool_call: scrubber rewrote the arguments of write_file",
    *PREPARED,
    *PREPARED,
    "before_tool_call: cfo required an approval of the call of read_file",
    "WAITING_APPROVAL",
    *PREPARED,
    "before_agent_finalize: keeper declared the answer final",
    "SUCCEEDED",
]


@pytest.fixture
def tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[Mesh]:
    """Connect as a client of a tenant for this test alone."""
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant)
    targets = {name: stack.targets[name] for name in ("session", "transcript", "hook")}
    async with connect(targets=targets, token=stack.client_token(tenant)) as client:
        yield client


@pytest.fixture
async def plugins(
    stack: Stack, tenant: str, mesh: Mesh, fork_server: ForkServer, tmp_path: Path
) -> AsyncIterator[None]:
    """Serve and register the plugins, each a process of its own."""
    async with AsyncExitStack() as serving_all:
        for name, (hook, answer) in PLUGINS.items():
            module = name.replace("-", "_")
            code = "from spawnmesh_plugin import *\n\n\n@hook('{}')\ndef decide(event):\n    return {}\n"
            (tmp_path / f"{module}.py").write_text(code.format(hook, answer))
            endpoint = await serving_all.enter_async_context(
                serving(fork_server, module, stack.keys, tenant, cwd=tmp_path)
            )
            await mesh.plugins.register(Plugin(name, endpoint, (HookKind(hook.upper()),), grants=GRANTS))
        yield


async def spawn(mesh: Mesh, task: str) -> Session:
    """Spawn an agent that makes the calls of the task, if plugins let it have its model and its tools."""
    tools = ("list_files", "read_file", "write_file", "search_files")
    await mesh.agents.put(
        Agent(CALLER, system_prompt=f"You are the {CALLER}.", models=("loopback/thinker",), tools=tools)
    )
    return await mesh.spawn(task, agent=CALLER)


def told(events: Sequence[SessionEvent]) -> list[str]:
    """Return the decisions, and the states that follow them."""
    return [
        event.detail if event.kind == "HOOK_DECIDED" else event.run_state
        for event in events
        if event.kind == "HOOK_DECIDED" or event.run_state in ("WAITING_APPROVAL", "SUCCEEDED")
    ]


async def events_of(session: Session) -> list[SessionEvent]:
    """Watch the session until it has ended."""
    return [one.event async for one in session.live() if isinstance(one, SessionChanged)]


async def pending(mesh: Mesh, session_id: str) -> list[Approval]:
    return [one async for one in mesh.approvals.list(session_id=session_id, state="PENDING")]


@pytest.mark.usefixtures("plugins")
async def test_watcher_sees_each_decision_of_plugins_in_order(
    stack: Stack, mesh: Mesh, tenant: str, commands: Commands
) -> None:
    session = await spawn(mesh, TASK)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(events_of(session))
        found: list[Approval] = await eventually(partial(pending, mesh, session.session_id))
        await mesh.approvals.approve(found[0].approval_id)
    events = watching.result()
    assert told(events) == TOLD
    run = (await session.refresh()).latest_run
    assert run is not None
    assert run.reported_event_count == len([line for line in TOLD if line.startswith("before_")]) - 1
    assert not [event for event in events if REASON in event.detail]
    code, printed, errors = await commands.run(
        "--data", str(stack.data_dir), "--tenant", tenant, "watch", session.session_id, env=os.environ
    )
    assert code == 0, errors
    lines = [line for line in printed.splitlines() if "  HOOK_DECIDED  " in line]
    assert [line.rpartition("  ")[2] for line in lines] == [line for line in TOLD if ":" in line]


@pytest.mark.usefixtures("plugins")
async def test_next_runner_of_a_run_asks_plugins_again_and_goes_on_with_the_numbers(
    stack: Stack, mesh: Mesh
) -> None:
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        session = await spawn(mesh, "list_files {}")

        async def prepared() -> bool:
            return told([event async for event in session.events(wait=False)]) == PREPARED

        await eventually(prepared)
        await stack.processes["runner"].kill()
    finally:
        model.resume()
    await stack.restart("runner")
    assert told(await events_of(session)) == [
        *PREPARED,
        *PREPARED,
        "before_tool_call: risk-policy blocked the call of list_files",
        *PREPARED,
        "before_agent_finalize: keeper declared the answer final",
        "SUCCEEDED",
    ]
    run = (await session.refresh()).latest_run
    assert run is not None
    assert run.reported_event_count == 7
