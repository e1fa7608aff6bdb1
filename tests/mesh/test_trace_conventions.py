"""The spans of a run have the attributes of OpenTelemetry's conventions, and one rule for errors."""

import importlib
import json
import pkgutil
from functools import cache
from uuid import uuid4

import pytest
from opentelemetry.semconv import _incubating, attributes
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_client.wire import connect_wire as connect
from spawnmesh_core.spans import Span
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.traces import orphans

from tests.support.waiting import eventually

OWN = "spawnmesh."
NO_ERROR = {"CANCELLED"}
REQUIRED = {
    "chat": {
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "gen_ai.response.finish_reasons",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.conversation.id",
        "server.address",
        "server.port",
    },
    "invoke_agent": {
        "gen_ai.agent.name",
        "gen_ai.agent.id",
        "gen_ai.agent.version",
        "gen_ai.conversation.id",
        "gen_ai.request.model",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    },
    "execute_tool": {"gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"},
}
"""The attributes that the GenAI conventions ask of each operation that succeeded."""
NAMED_BY = {
    "chat": "gen_ai.request.model",
    "invoke_agent": "gen_ai.agent.name",
    "execute_tool": "gen_ai.tool.name",
}
CONTENT = {
    "chat": {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"},
    "invoke_agent": set[str](),
    "execute_tool": {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"},
}
"""The attributes with content, which operator and tenant must want."""


@cache
def known() -> frozenset[str]:
    """Return every name of the conventions, as the package has them that the SDK pins."""
    incubating = importlib.import_module(f"{_incubating.__name__}.attributes")
    names = set()
    for package in (attributes, incubating):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            found = vars(importlib.import_module(module.name))
            names |= {value for name, value in found.items() if name.isupper() and isinstance(value, str)}
    return frozenset(names)


def is_genai(span: Span) -> bool:
    return "gen_ai.operation.name" in span.attributes


async def new_tenant(stack: Stack, *, with_content: bool = False) -> str:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect(session=stack.targets["session"], token=stack.admin_token()) as operator:
        settings = TenantSettings(routing=RoutingPolicy(trace_content=with_content))
        await operator.create_tenant(tenant, settings=settings)
    return tenant


async def trace_of(
    stack: Stack, task: str, *, with_content: bool = False
) -> tuple[session_pb2.Session, list[Span]]:
    """Run the task in a tenant of its own; return the session, and its trace once it is complete."""
    tenant = await new_tenant(stack, with_content=with_content)
    async with connect(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        tools = ["list_files", "read_file"]
        agent = AgentProfile(
            agent_id=CALLER, system_prompt=f"You are the {CALLER}.", models=[SCRIPTED_AGENT], tools=tools
        )
        await mesh.put_agent(agent)
        session = await mesh.spawn(task, agent_id=CALLER, wait_seconds=120)

    def collected() -> list[Span] | None:
        spans = load_spans(stack.traces_file, session.trace_id)
        has_run = any(span.name.startswith("run ") for span in spans)
        operations = {span.attributes.get("gen_ai.operation.name") for span in spans}
        is_complete = has_run and operations >= REQUIRED.keys() and not orphans(spans)
        return spans if is_complete else None

    return session, await eventually(collected)


async def test_spans_of_a_run_have_the_attributes_of_the_conventions(stack: Stack) -> None:
    session, spans = await trace_of(stack, "list_files {}")
    assert session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED
    unknown = {
        name for span in spans for name in span.attributes if not name.startswith(OWN) and name not in known()
    }
    assert unknown == set()
    found = {}
    for span in spans:
        operation = span.attributes.get("gen_ai.operation.name")
        if operation is not None:
            found[operation] = span
            assert span.name == f"{operation} {span.attributes[NAMED_BY[operation]]}"
            assert {name for name in REQUIRED[operation] if span.attributes.get(name) in (None, "")} == set()
    assert found.keys() == REQUIRED.keys()
    for span in spans:
        if span.kind in ("client", "server") and "/" in span.name:
            assert span.attributes["rpc.system.name"] == "grpc"
            assert span.attributes["rpc.method"] == span.name
            assert span.attributes["rpc.response.status_code"]
    assert [span.name for span in spans if span.status == "error"] == []


@pytest.mark.parametrize("wanted", [True, False])
async def test_content_is_in_spans_only_if_the_tenant_wants_it(stack: Stack, wanted: bool) -> None:
    _, spans = await trace_of(stack, "list_files {}", with_content=wanted)
    found = {span.attributes["gen_ai.operation.name"]: span for span in spans if is_genai(span)}
    for operation, span in found.items():
        assert span.attributes.keys() & set().union(*CONTENT.values()) == (
            CONTENT[operation] if wanted else set()
        )
    if wanted:
        tool = found["execute_tool"].attributes
        assert json.loads(tool["gen_ai.tool.call.arguments"]) == {}
        assert json.loads(tool["gen_ai.tool.call.result"])["path"] == "."


async def test_a_failed_run_is_an_error_with_its_reason_and_its_spawn_is_none(stack: Stack) -> None:
    tenant = await new_tenant(stack)
    async with connect(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        await mesh.put_agent(AgentProfile(agent_id="lost", models=["nothing/none"]))
        session = await mesh.spawn("Fail.", agent_id="lost", wait_seconds=120)

    def collected() -> dict[str, Span] | None:
        spans = load_spans(stack.traces_file, session.trace_id)
        found = {span.name.rpartition("/")[2]: span for span in spans if span.kind != "client"}
        return found if "run lost" in found and not orphans(spans) else None

    spans = await eventually(collected)
    assert session.latest_run.state == session_pb2.RUN_STATE_FAILED
    for name in ("run lost", "invoke_agent lost"):
        assert (spans[name].status, spans[name].attributes["error.type"]) == ("error", "UNKNOWN_MODEL")
    assert spans["SpawnSession"].status != "error"
    assert not spans["SpawnSession"].parent_span_id


@pytest.mark.parametrize("task", ["list_files {}", 'read_file {"path": "nothing"}'])
async def test_a_span_is_an_error_if_and_only_if_it_names_one(stack: Stack, task: str) -> None:
    _, spans = await trace_of(stack, task)
    [tool] = [span for span in spans if span.name.startswith("execute_tool ")]
    assert tool.attributes.get("error.type", "") == ("NOT_FOUND" if "nothing" in task else "")
    for span in spans:
        error = span.attributes.get("error.type")
        if span.kind == "server":  # A refusal that is the fault of the caller is no error here.
            assert error if span.status == "error" else True, span
        else:
            assert (span.status == "error") == (error is not None and error not in NO_ERROR), span
