"""Arguments and results of tool calls in their spans: by consent of two, masked, and bounded."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.session.v1.approval_pb2 import APPROVAL_STATE_APPROVED, ApprovalPolicy

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

SECRET = "sk-ant-api03-" + "Qx7" * 12
BOUND = 4096
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"

Recording = Callable[..., AbstractAsyncContextManager[list[ReadableSpan]]]


@pytest.fixture
def recording(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> Recording:
    """Return the start of a runner that records content; the block gets the spans after its end."""

    @asynccontextmanager
    async def start(*, max_bytes: int = BOUND, consents: bool = True) -> AsyncIterator[list[ReadableSpan]]:
        exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        mesh.trace_content = consents
        found: list[ReadableSpan] = []
        tracer = provider.get_tracer("test")
        async with running_runner(mesh, keys, tmp_path, tracer=tracer, trace_content_max_bytes=max_bytes):
            yield found
            await eventually(lambda: mesh.finalized)
        found.extend(exporter.get_finished_spans())

    return start


def content(span: ReadableSpan) -> tuple[Any, Any]:
    attributes = dict(span.attributes or {})
    return attributes.get(ARGUMENTS), attributes.get(RESULT)


def of_tool(spans: list[ReadableSpan], tool: str) -> ReadableSpan:
    [span] = [span for span in spans if span.name == f"execute_tool {tool}"]
    return span


async def test_Generate__arguments_and_results_are_in_the_spans_of_the_calls_without_secrets(
    mesh: ScriptedMesh, recording: Recording
) -> None:
    written = {"path": "a.txt", "content": f"Use {SECRET} there."}
    mesh.answers.extend(
        [
            calling(("c1", "write_file", json.dumps(written))),
            calling(("c2", "read_file", '{"path": "a.txt"}')),
            calling(("c3", "read_file", '{"path": "nothing"}')),
            saying("Done."),
        ]
    )
    mesh.queue_run(tools=("write_file", "read_file"))
    async with recording() as spans:
        pass
    assert SECRET[:16] not in "".join(span.to_json() for span in spans)
    arguments, result = content(of_tool(spans, "write_file"))
    assert json.loads(arguments) == {**written, "content": "Use [$redacted:provider_key] there."}
    assert json.loads(result)["path"] == "a.txt"
    reads = [content(span) for span in spans if span.name == "execute_tool read_file"]
    assert [json.loads(arguments)["path"] for arguments, _ in reads] == ["a.txt", "nothing"]
    assert "Use [$redacted:provider_key] there." in reads[0][1]
    assert reads[1][1].startswith("NOT_FOUND: ")


@pytest.mark.parametrize(("max_bytes", "consents"), [(0, True), (BOUND, False)])
async def test_Generate__no_content_is_in_spans_unless_operator_and_tenant_want_it(
    mesh: ScriptedMesh, recording: Recording, max_bytes: int, consents: bool
) -> None:
    written = json.dumps({"path": "a.txt", "content": "a private text"})
    mesh.answers.extend(
        [
            calling(("c1", "write_file", written), ("c2", "read_file", '{"path": "a.txt"}')),
            saying("Done."),
        ]
    )
    mesh.queue_run(tools=("write_file", "read_file"))
    async with recording(max_bytes=max_bytes, consents=consents) as spans:
        pass
    assert content(of_tool(spans, "write_file")) == content(of_tool(spans, "read_file")) == (None, None)
    assert "private" not in "".join(span.to_json() for span in spans)


async def test_SpawnSession__files_of_a_spawn_are_never_in_spans(
    mesh: ScriptedMesh, recording: Recording
) -> None:
    files = [
        {"name": "a.txt", "content": "the secret plan"},
        {"name": "b.txt", "content": "dGhlIHNlY3JldCBwbGFu", "encoding": "base64"},
    ]
    odd = {"task": "Read it.", "attachments": files, "files": ["the secret plan"]}
    for call_id, arguments in (("c1", {"task": "Read it.", "attachments": files}), ("c2", odd)):
        mesh.answers.append(calling((call_id, "sessions_spawn", json.dumps(arguments))))
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=("sessions_spawn",))
    async with recording() as spans:
        pass
    told = "".join(span.to_json() for span in spans)
    assert "secret plan" not in told
    assert files[1]["content"] not in told
    first, second = [content(span) for span in spans if span.name == "execute_tool sessions_spawn"]
    assert json.loads(first[0])["task"] == json.loads(second[0])["task"] == "Read it."
    assert [one["content"]["$redacted"] for one in json.loads(first[0])["attachments"]] == ["attachment"] * 2


async def test_Generate__long_arguments_and_results_are_cut_within_the_bound(
    mesh: ScriptedMesh, recording: Recording
) -> None:
    written = json.dumps({"path": "a.txt", "content": "word " * 20_000})
    mesh.answers.extend(
        [
            calling(("c1", "write_file", written), ("c2", "read_file", '{"path": "a.txt"}')),
            saying("Done."),
        ]
    )
    mesh.queue_run(tools=("write_file", "read_file"))
    async with recording() as spans:
        pass
    for text in (content(of_tool(spans, "write_file"))[0], content(of_tool(spans, "read_file"))[1]):
        assert BOUND // 5 < len(text.encode()) <= BOUND
        assert text.endswith(" characters in all]")


async def test_Generate__a_call_that_a_plugin_rewrote_is_in_its_span_as_it_was_made(
    mesh: ScriptedMesh, recording: Recording
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    rewritten = decisions.Rewrite(arguments_json='{"path":"b.txt","content":"x"}')
    mesh.hooks.tool_call = decisions.ToolCallDecision(rewrite=rewritten)
    mesh.answers.extend([calling(("c1", "write_file", '{"path":"a.txt","content":"y"}')), saying("Done.")])
    mesh.queue_run(tools=("write_file",))
    async with recording() as spans:
        pass
    assert json.loads(content(of_tool(spans, "write_file"))[0]) == {"path": "b.txt", "content": "x"}


async def test_RequestApproval__an_approved_call_has_its_content_where_it_is_made(
    mesh: ScriptedMesh, recording: Recording
) -> None:
    policy = ApprovalPolicy(tools=["write_file"])
    mesh.answers.append(calling(("c1", "write_file", '{"path":"a.txt","content":"y"}')))
    mesh.queue_run(tools=("write_file",), approval=policy)
    async with recording() as spans:
        await eventually(lambda: mesh.approvals.requests)
        mesh.approvals.decide(APPROVAL_STATE_APPROVED)
        mesh.answers.append(saying("Done."))
        mesh.queue_run(epoch=2, tools=("write_file",), approval=policy)
    waited, made = [content(span) for span in spans if span.name == "execute_tool write_file"]
    assert waited == (None, None)
    assert json.loads(made[0])["path"] == json.loads(made[1])["path"] == "a.txt"
