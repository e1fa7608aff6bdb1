"""The model of a worker sees what it should see, and watchers read what happened to its run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcripts
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, Mirror
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client import Agent, EventKind, Mesh, Plugin, Session, connect
from spawnmesh_client.resource_views import Grant, HookKind
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.turn_messages import text_message
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.models import SCRIPTED_AGENT, SCRIPTED_FLAKY
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.client.tool_worker import SERVICES, runner_token, working
from tests.support.hook.plugin_process import serving
from tests.support.mesh.new_tenant import new_tenant
from tests.support.model_router.provider import LoopbackProvider
from tests.support.model_router.responses import COMPLETED, called, responses, said
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)
SECONDS = 120.0
THINKER = "loopback/thinker"
PNG = b"\x89PNG\r\n\x1a\nnot really"


@pytest.fixture
async def tenant(stack: Stack) -> str:
    return await new_tenant(stack)


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[Mesh]:
    async with connect(targets=targets_of(stack), token=stack.client_token(tenant)) as client:
        yield client


@pytest.fixture
async def runner(stack: Stack, tenant: str) -> AsyncIterator[Mesh]:
    async with connect(targets=targets_of(stack), token=runner_token(stack, tenant)) as client:
        yield client


def targets_of(stack: Stack) -> dict[str, str]:
    return {name: stack.targets[name] for name in SERVICES}


def forecast(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


async def spawned(mesh: Mesh, task: str, *models: str, **agent: Any) -> Session:
    """Spawn an agent whose runs the worker answers, with these models."""
    await mesh.agents.put(Agent(CALLER, system_prompt=f"You are the {CALLER}.", models=models, **agent))
    return await mesh.spawn(task, agent=CALLER, runtime="EXTERNAL")


async def events_of(session: Session, *, last: str = "") -> list[str]:
    """Return the events about models and plugins, in the words that a watcher reads: all of them,
    or those before the first event of the state `last`.
    """
    found = []
    async for one in session.events():
        if one.kind in (EventKind.MODEL_FAILED, EventKind.HOOK_DECIDED):
            found.append(one.detail)
        if last and one.run_state == last:
            break
    return found


async def test_images_that_a_text_names_are_shown_and_nothing_outside_of_the_workspace(
    mesh: Mesh, runner: Mesh, provider: LoopbackProvider, tmp_path: Path
) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)

    async def answer(ctx: RunContext) -> str:
        (ctx.workspace / "out").mkdir()
        (ctx.workspace / "out" / "chart.png").write_bytes(PNG)
        (ctx.workspace / "no.png").write_bytes(b"text")
        (ctx.workspace / "secret.png").symlink_to(tmp_path / "secret.png")
        return (await ctx.run_tools([forecast])).text

    provider.bodies.clear()
    provider.on("thinker", responses(*said("A chart."), COMPLETED))
    async with working(runner, answer):
        task = f"What is in out/chart.png, no.png, secret.png, missing.png and {tmp_path}/secret.png?"
        session = await spawned(mesh, task, THINKER)
        assert (await session.result(timeout=SECONDS)).text == "A chart."
    [body] = provider.bodies
    [asked] = [item for item in body["input"] if item.get("role") == "user" and "chart.png" in str(item)]
    assert [part["type"] for part in asked["content"]].count("input_image") == 1


async def test_model_that_goes_on_after_a_broken_stream_is_told_what_was_sent_to_a_person(
    stack: Stack, tenant: str, mesh: Mesh, runner: Mesh, provider: LoopbackProvider
) -> None:
    minter = TokenMinter("client", stack.keys / "client.pem")
    gateway_token = minter.client_token(tenant, "gateway", 300, permissions=["unowned_append"])

    async def answer(ctx: RunContext) -> str:
        async def write_to_a_person(text: str) -> str:
            """Write to a person."""
            async with connect(targets=targets_of(stack), token=gateway_token) as gateway:
                peer = gateway.wire.service("transcript")
                mirror = EntryBody(mirror=Mirror(message=text_message(ROLE_ASSISTANT, text)))
                request = transcripts.AppendEntriesRequest(
                    session_id=ctx.session.session_id, request_id="mirror", entries=[mirror]
                )
                await peer.unary(TranscriptServiceStub(peer.channel).AppendEntries, request)
            return "sent"

        return (await ctx.run_tools([write_to_a_person])).text

    calling = called("call_1", "write_to_a_person", '{"text": "Hello."}')
    provider.bodies.clear()
    provider.on(
        "thinker",
        responses(*calling, COMPLETED),
        responses(*said("Half of an ans")[:3]),
        responses(*said("Done."), COMPLETED),
    )
    async with working(runner, answer):
        session = await spawned(mesh, "Write to Kim.", THINKER)
        assert (await session.result(timeout=SECONDS)).text == "Done."
    first, broken, last = map(str, provider.bodies)
    assert "already sent to a person" not in first + broken
    assert "A message was already sent to a person" in last
    assert "write_to_a_person" in last
    assert await events_of(session) == ["loopback/thinker: TIMEOUT"]


async def test_watchers_read_which_models_failed_and_what_plugins_decided(
    stack: Stack, tenant: str, mesh: Mesh, runner: Mesh, fork_server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "judge.py").write_text(
        "from spawnmesh_plugin import *\n\n\n"
        "@hook('before_prompt_build')\ndef build(event):\n"
        "    return change_prompt(context='The plugin was here.')\n\n\n"
        "@hook('before_tool_call')\ndef decide(event):\n"
        "    if 'Paris' in event.arguments_json:\n        return block('not there')\n"
        "    if 'Bern' in event.arguments_json:\n        return require_approval('too far')\n"
        "    return rewrite({'city': 'Oslo'})\n"
    )

    async def answer(ctx: RunContext) -> str:
        return (await ctx.run_tools([forecast])).text

    hooks = (HookKind.BEFORE_PROMPT_BUILD, HookKind.BEFORE_TOOL_CALL)
    grants = (Grant.CONVERSATION_ACCESS, Grant.PROMPT_INJECTION)
    async with (
        serving(fork_server, "judge", stack.keys, tenant, cwd=tmp_path) as endpoint,
        working(runner, answer),
    ):
        await mesh.plugins.register(Plugin("judge", endpoint, hooks, grants=grants))
        cities = ("Paris", "Rome", "Bern")
        task = "\n".join(f'forecast {{"city": "{city}"}}' for city in cities)
        session = await spawned(mesh, task, SCRIPTED_FLAKY, SCRIPTED_AGENT)

        async def waiting() -> Any:
            found = mesh.approvals.list(state="PENDING", session_id=session.session_id)
            return next(iter([one async for one in found]), None)

        approval: Any = await eventually(waiting)
        before = await events_of(session, last="WAITING_APPROVAL")
        await mesh.approvals.approve(approval.approval_id)
        assert (await session.result(timeout=SECONDS)).text == "sunny in Bern"
    changed = "before_prompt_build: judge added context"
    decided = [
        changed,
        "before_tool_call: judge blocked the call of forecast",
        changed,
        "before_tool_call: judge rewrote the arguments of forecast",
        changed,
        "before_tool_call: judge required an approval of the call of forecast",
    ]
    failed = f"{SCRIPTED_FLAKY}: RATE_LIMIT (HTTP 429)"
    assert before[1] == failed
    assert [one for one in before if one != failed] == decided
    assert [one for one in await events_of(session) if one != failed] == [*decided, changed]
