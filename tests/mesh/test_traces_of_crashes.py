"""Each span of a trace has its parent, also if processes were killed in the middle of a run."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pytest
from spawnmesh.hook.v1.hook_service_pb2 import UpdatePluginRequest
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.spans import Span
from spawnmesh_devstack import demo_plugin
from spawnmesh_devstack.demo_agents import plugin_at
from spawnmesh_devstack.members import Member, Readiness, process_variables, python_module
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.processes import ChildProcess
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.traces import orphans
from spawnmesh_runtime.span_journal_file import decode_spans

from tests.support.waiting import eventually

AWAY = {"DEPENDENCY_UNAVAILABLE", "PLUGIN_FAILED", "SPAWN_IN_PROGRESS", "SPAWN_FAILED"}
SPAWN = "sessions_spawn " + json.dumps({"task": "say something"})
_CALLER = AgentProfile(
    agent_id=CALLER,
    system_prompt=f"You are the {CALLER}.",
    models=[SCRIPTED_AGENT],
    tools=["sessions_spawn"],
    spawnable_agents=["*"],
)


@dataclass(frozen=True)
class Gated:
    """A client of a tenant whose spawns and drafts a plugin judges."""

    mesh: WireMesh
    plugin: ChildProcess


@asynccontextmanager
async def client_of(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    async with AsyncExitStack() as exits:
        at = partial(connect_wire, session=stack.targets["session"], hook=stack.targets["hook"])
        operator = await exits.enter_async_context(at(token=stack.admin_token()))
        await operator.create_tenant(tenant)
        yield await exits.enter_async_context(at(token=stack.client_token(tenant)))


@pytest.fixture
async def plain(stack: Stack) -> AsyncIterator[WireMesh]:
    """Connect as a client of a tenant without a plugin."""
    async with client_of(stack, f"t-{uuid4().hex[:12]}") as mesh:
        yield mesh


@pytest.fixture
async def gated(stack: Stack) -> AsyncIterator[Gated]:
    tenant, port = f"t-{uuid4().hex[:12]}", free_ports(1)[0]
    env = process_variables(demo_plugin.NAME, port, stack.keys, stack.otlp_endpoint)
    env["DEMO_PLUGIN_TENANTS"] = json.dumps([tenant])
    name = f"plugin-of-{tenant}"
    await stack.start(Member(name, python_module(demo_plugin.__name__), env, Readiness.GRPC, port))
    try:
        async with client_of(stack, tenant) as mesh:
            await mesh.put_agent(_CALLER)
            plugin = plugin_at(port)
            plugin.timeout.FromSeconds(120)
            hooks = mesh.service("hook")
            await hooks.unary(
                HookServiceStub(hooks.channel).UpdatePlugin,
                UpdatePluginRequest(allow_missing=True, plugin=plugin),
                timeout_seconds=60,
            )
            yield Gated(mesh, stack.processes[name])
    finally:
        await stack.processes[name].stop()


def is_open(stack: Stack, session: session_pb2.Session, name: str) -> bool:
    """Return whether a process is in the middle of such a span of the session's trace."""
    journals = list((stack.data_dir / "spans").glob("*.spans"))
    return any(
        f"{span.context.trace_id:032x}" == session.trace_id
        and span.name.endswith(name)
        and (span.attributes or {}).get("error.type") == "PROCESS_LOST"
        for journal in journals
        for span in decode_spans(journal.read_bytes())
    )


@asynccontextmanager
async def in_the_middle(
    stack: Stack, plain: WireMesh, gated: Gated
) -> AsyncIterator[list[session_pb2.Session]]:
    """Hold up a run in a model call, one in a tool call that spawns, and one in its finalize."""
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        spawning = await gated.mesh.spawn(SPAWN, agent_id=CALLER)
        finalizing = await gated.mesh.spawn("say something")
        gated.plugin.pause()
        model.resume()
        await eventually(lambda: is_open(stack, spawning, "/DispatchBeforeSpawn"))
        await eventually(lambda: is_open(stack, finalizing, "/DispatchBeforeAgentFinalize"))
        model.pause()
        calling = await plain.spawn("say something")
        await eventually(lambda: is_open(stack, calling, "chat agent"))
        yield [calling, spawning, finalizing]
    finally:
        model.resume()
        gated.plugin.resume()


async def succeeded(mesh: WireMesh, session: session_pb2.Session) -> None:
    waited = await mesh.wait(session.session_id, 120)
    assert waited.done
    assert waited.session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, waited.session.latest_run


async def whole_trace(
    stack: Stack, session: session_pb2.Session, *attempts: int, broken_off: str = ""
) -> list[Span]:
    """Return the trace once so many attempts at the run are in it, a lost span whose name ends so,
    and each span has its parent.

    Attempts that ended because a service or the plugin was away are not counted: on a busy machine
    a restart may take longer than a runner waits for it.
    """

    def collected() -> list[Span] | None:
        spans = load_spans(stack.traces_file, session.trace_id)
        ended = [error for error in attempts_of(spans, session) if error not in AWAY]
        has_lost = not broken_off or any(name.endswith(broken_off) for name in lost_names(spans))
        return spans if len(ended) in attempts and has_lost and not orphans(spans) else None

    try:
        return await eventually(collected)
    except AssertionError:
        spans = load_spans(stack.traces_file, session.trace_id)
        alone = [(span.service, span.name) for span in orphans(spans)]
        raise AssertionError(
            f"without parents: {alone}; lost: {lost_names(spans)}; attempts: {attempts_of(spans, session)}"
        ) from None


def is_attempt(span: Span, session: session_pb2.Session) -> bool:
    of_session = span.attributes.get("gen_ai.conversation.id") == session.session_id
    return of_session and span.name.startswith("invoke_agent ")


def is_run(span: Span, session: session_pb2.Session) -> bool:
    of_session = span.attributes.get("gen_ai.conversation.id") == session.session_id
    return of_session and span.name.startswith("run ")


def lost_names(spans: list[Span]) -> set[str]:
    """Return the names of the spans that a process was killed in."""
    return {span.name for span in spans if span.attributes.get("error.type") == "PROCESS_LOST"}


def attempts_of(spans: list[Span], session: session_pb2.Session) -> list[object]:
    """Return the error of each attempt at the run."""
    return [span.attributes.get("error.type") for span in spans if is_attempt(span, session)]


async def test_each_span_has_its_parent_after_a_runner_was_killed(
    stack: Stack, plain: WireMesh, gated: Gated
) -> None:
    async with in_the_middle(stack, plain, gated) as sessions:
        await stack.processes["runner"].kill()
    await stack.restart("runner")
    for session, mesh in zip(sessions, (plain, gated.mesh, gated.mesh), strict=True):
        await succeeded(mesh, session)
    for session, broken_off in zip(
        sessions, ("Generate", "execute_tool sessions_spawn", "FinalizeRun"), strict=True
    ):
        spans = await whole_trace(stack, session, 2, broken_off=broken_off)
        assert attempts_of(spans, session) == ["PROCESS_LOST", None]
        waits = [span for span in spans if span.name == "wait in queue"]
        of_run = [span for span in waits if span.attributes["gen_ai.conversation.id"] == session.session_id]
        assert [span.attributes["spawnmesh.attempt"] for span in of_run] == [1, 2]
        [run] = [span for span in spans if is_run(span, session)]
        assert {span.parent_span_id for span in of_run} == {run.span_id}
        assert run.parent_span_id in {span.span_id for span in spans if not span.parent_span_id}


async def test_each_span_has_its_parent_after_services_were_killed(
    stack: Stack, plain: WireMesh, gated: Gated
) -> None:
    async with in_the_middle(stack, plain, gated) as sessions:
        for service in ("session", "model-router"):
            await stack.processes[service].kill()
            await stack.restart(service)
    calling, spawning, finalizing = sessions
    await succeeded(plain, calling)
    await succeeded(gated.mesh, finalizing)
    await gated.mesh.kill(spawning.session_id)  # Its spawn would be undone after a minute.
    for session, broken_off in zip(sessions, ("chat agent", "/SpawnSession", "/FinalizeRun"), strict=True):
        # The run that spawned may have waited in the queue when it was killed, and on a busy machine
        # it may have lost its lease before.
        attempts = (0, 1, 2) if session is spawning else (1,)
        await whole_trace(stack, session, *attempts, broken_off=broken_off)


async def test_each_span_has_its_parent_after_a_session_was_killed_by_its_user(
    stack: Stack, plain: WireMesh
) -> None:
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        session = await plain.spawn("say something")
        await eventually(lambda: is_open(stack, session, "chat agent"))
        await plain.kill(session.session_id)
        spans = await whole_trace(stack, session, 1)
    finally:
        model.resume()
    assert attempts_of(spans, session) == ["RUN_LEASE_LOST"]
