"""Turns of a worker's model: plugins change them, long contexts are summarized, outputs are read
again.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_client import Agent, Mesh, Plugin, connect
from spawnmesh_client.resource_views import Grant, HookKind
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.tools import tool
from spawnmesh_client.worker import Worker
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.models import SCRIPTED_AGENT, SCRIPTED_OPENER
from spawnmesh_devstack.scripted_agents import CALLER, READER
from spawnmesh_devstack.stack import Stack

from tests.support.client.tool_worker import SERVICES, runner_token
from tests.support.hook.plugin_process import serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)
SECONDS = 120.0
PLUGIN = """
import json, pathlib
from spawnmesh_plugin import *


def note(kind, **facts):
    with pathlib.Path("seen.jsonl").open("a") as file:
        file.write(json.dumps([kind, facts]) + "\\n")


@hook('before_model_resolve')
def choose(event):
    note("resolve", models=list(event.models))
    return use_model({agent!r})


@hook('before_prompt_build')
def build(event):
    note("build", tools=list(event.tool_names))
    return change_prompt(context="The plugin was here.", tools=["forecast"])


@hook('llm_input')
def read(event):
    note("input", prompt=event.llm_input.system_prompt, tools=list(event.llm_input.tool_names),
         model=event.llm_input.models[0])


@hook('llm_output')
def say(event):
    note("output", model=event.llm_output.model)


@hook('after_tool_call')
def called(event):
    note("called", tool=event.after_tool_call.tool_name, text=event.after_tool_call.result_text,
         reason=event.after_tool_call.error_reason)
"""


def forecast(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


def secret() -> str:
    """Return what no model may read."""
    return "secret"


@asynccontextmanager
async def tenant_of(stack: Stack, **transcripts: Any) -> AsyncIterator[tuple[str, Mesh]]:
    """Create a tenant, and connect as its client."""
    tenant = f"t-{uuid4().hex[:12]}"
    settings = TenantSettings(transcripts=TranscriptSettings(**transcripts))
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant, settings=settings)
    targets = {name: stack.targets[name] for name in SERVICES}
    async with connect(targets=targets, token=stack.client_token(tenant)) as mesh:
        yield tenant, mesh


@asynccontextmanager
async def working(
    stack: Stack, tenant: str, agent: str, function: Callable[[RunContext], Awaitable[str]]
) -> AsyncIterator[None]:
    """Answer the runs of the agent with the function during the block."""
    targets = {name: stack.targets[name] for name in SERVICES}
    async with connect(targets=targets, token=runner_token(stack, tenant)) as runner:
        worker = Worker(runner)
        worker.agent(agent)(function)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            try:
                yield
            finally:
                worker.stop()


async def test_plugins_change_the_turns_of_a_worker_and_observe_them(
    stack: Stack, fork_server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "turns.py").write_text(PLUGIN.replace("{agent!r}", repr(SCRIPTED_AGENT)))

    async def answer(ctx: RunContext) -> str:
        return (await ctx.run_tools([forecast, secret])).text

    hooks = (
        HookKind.BEFORE_MODEL_RESOLVE,
        HookKind.BEFORE_PROMPT_BUILD,
        HookKind.LLM_INPUT,
        HookKind.LLM_OUTPUT,
        HookKind.AFTER_TOOL_CALL,
    )
    async with (
        tenant_of(stack) as (tenant, mesh),
        serving(fork_server, "turns", stack.keys, tenant, cwd=tmp_path) as endpoint,
        working(stack, tenant, CALLER, answer),
    ):
        grants = (Grant.CONVERSATION_ACCESS, Grant.PROMPT_INJECTION)
        await mesh.plugins.register(Plugin("turns", endpoint, hooks, grants=grants))
        prompt = f"You are the {CALLER}."
        await mesh.agents.put(Agent(CALLER, system_prompt=prompt, models=(SCRIPTED_OPENER, SCRIPTED_AGENT)))
        task = 'forecast {"city": "Paris"}'
        session = await mesh.spawn(task, agent=CALLER, runtime="EXTERNAL")
        assert (await session.result(timeout=SECONDS)).text == "sunny in Paris"

        async def seen() -> list[Any] | None:
            lines = (tmp_path / "seen.jsonl").read_text().splitlines()
            notes = [json.loads(line) for line in lines]
            return notes if sum(kind == "output" for kind, _ in notes) == 2 else None

        notes = await eventually(seen)
    # A turn with the call, and one with the answer.
    assert notes.count(["resolve", {"models": [SCRIPTED_OPENER, SCRIPTED_AGENT]}]) == 2
    assert notes.count(["build", {"tools": ["forecast", "secret"]}]) == 2
    changed = {"prompt": f"{prompt}\n\nThe plugin was here.", "tools": ["forecast"], "model": SCRIPTED_AGENT}
    assert notes.count(["input", changed]) == 2
    assert notes.count(["output", {"model": SCRIPTED_AGENT}]) == 2
    assert notes.count(["called", {"tool": "forecast", "text": "sunny in Paris", "reason": ""}]) == 1


async def test_a_long_conversation_of_a_worker_goes_on_from_a_summary(stack: Stack) -> None:
    async def answer(ctx: RunContext) -> str:
        return (await ctx.run_tools([forecast])).text

    agent = Agent("talker", models=(SCRIPTED_AGENT,), context_token_budget=8_000)
    async with (
        tenant_of(stack, compact_at_percent=50) as (tenant, mesh),
        working(stack, tenant, "talker", answer),
    ):
        await mesh.agents.put(agent)
        first = "First. " + "word " * 2_500
        session = await mesh.spawn(first, agent="talker", mode="SESSION", runtime="EXTERNAL")
        await session.result(timeout=SECONDS)
        await session.send("Second. " + "word " * 2_500)
        answered = await session.result(timeout=SECONDS)
        entries = [one async for one in session.transcript()]
    assert "You said: Second. word" in answered.text
    [summary] = [one for one in entries if one.kind == "COMPACTION"]
    assert "First. word" in summary.text
    assert [one.text for one in entries if one.seq > summary.seq and one.role == "ASSISTANT"] == [
        answered.text
    ]


async def test_a_model_of_a_worker_reads_the_output_behind_a_reference(stack: Stack) -> None:
    code_word = secrets.token_hex(8)
    lines = [f"line {number} of a long file that says nothing at all\n" for number in range(1_000)]
    first = [*lines[:200], f"the code word is {code_word}\n", *lines[:100]]
    files = {"1.txt": "".join(first)}
    files |= {f"{number}.txt": "".join([f"{number}\n", *lines]) for number in (2, 3, 4)}

    def list_files(path: str) -> str:
        """List the files of a directory."""
        items = [json.dumps({"name": name, "kind": "file"}) for name in files]
        return "\n".join([json.dumps({"truncated": False}), *items])

    def read_file(path: str) -> str:
        """Read a file."""
        return f'{{"binary": false}}\n{files[path.rpartition("/")[2]]}'

    async def answer(ctx: RunContext) -> str:
        tools = [tool(list_files, idempotent=True), tool(read_file, idempotent=True)]
        return (await ctx.run_tools(tools)).text

    prompt = f"You are the {READER}. Read every attached file, and tell the code word that is in the first."
    async with (
        tenant_of(stack, stub_large_tool_payloads=True) as (tenant, mesh),
        working(stack, tenant, READER, answer),
    ):
        await mesh.agents.put(Agent(READER, system_prompt=prompt, models=(SCRIPTED_AGENT,)))
        # The runs of workers have no attachments: the files are those of its tools.
        task = "Tell the code word. Attached files: 4 in `shelf`"
        session = await mesh.spawn(task, agent=READER, runtime="EXTERNAL")
        result = await session.result(timeout=SECONDS)
        called = [one.tool_name async for one in session.transcript() if one.tool_name]
    assert result.text == f"The code word is {code_word}."
    assert called == ["list_files", *["read_file"] * 4, "transcript_describe"]
