"""`spawnmesh trace`, which the local mesh adds to the command."""

import asyncio
import json

import pytest
import typer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2
from spawnmesh_command.cli.app import options
from spawnmesh_devstack.span_file import framed
from spawnmesh_devstack.trace_command import add_commands

from tests.support.command.fake_mesh import SESSION_ID, invoke, mesh, unset

__all__ = ["mesh", "unset"]

TRACE = "ab" * 16


@pytest.fixture
def app():
    made = typer.Typer()
    made.callback()(options)
    add_commands(made)
    made.command("other")(lambda: None)
    return made


@pytest.fixture
def recorded(mesh):
    span = trace_pb2.Span(
        trace_id=bytes.fromhex(TRACE),
        span_id=b"\x01" * 8,
        name="SpawnSession",
        start_time_unix_nano=1_000_000_000,
        end_time_unix_nano=1_005_000_000,
    )
    batch = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=[span])])
    batch.resource.attributes.add(key="service.name").value.string_value = "session"
    request = ExportTraceServiceRequest(resource_spans=[batch])
    (mesh.data / "traces.otlp").write_bytes(framed(request.SerializeToString()))
    mesh.sessions.known[0].trace_id = TRACE
    return mesh


async def test_a_trace_is_drawn_as_a_waterfall(recorded, app):
    result = invoke("--data", str(recorded.data), "trace", TRACE, app=app)

    head, line = result.stdout.splitlines()
    assert head == f"trace {TRACE}: 1 spans of session"
    assert line.startswith("session SpawnSession")
    assert "5.0 ms" in line


async def test_a_session_is_traced_by_its_id(recorded, app):
    result = await asyncio.to_thread(
        invoke, "--data", str(recorded.data), "trace", SESSION_ID, "--json", app=app
    )

    assert [span["name"] for span in json.loads(result.stdout)["spans"]] == ["SpawnSession"]


async def test_a_missing_trace_is_reported(recorded, app):
    result = invoke("--data", str(recorded.data), "trace", "cd" * 16, app=app)

    assert result.exit_code == 1
    assert result.stderr == (
        f"error: NOT_FOUND: no span of trace {'cd' * 16} is recorded yet; they arrive within seconds\n"
    )


def test_a_mesh_elsewhere_keeps_its_traces_elsewhere(app):
    result = invoke("--session-target", "elsewhere:1", "trace", TRACE, app=app)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: NOT_FOUND: this mesh keeps its traces elsewhere")


def test_anything_but_an_id_is_wrong_usage(app):
    assert invoke("trace", "../etc", app=app).exit_code == 2
