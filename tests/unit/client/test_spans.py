"""Client spans of a program that has OpenTelemetry, and of one that has not."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from spawnmesh_client import connections

PATH = "/spawnmesh.session.v1.SessionService/GetSession"


def test_calls_continue_the_trace_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    monkeypatch.setattr(trace, "get_tracer", lambda _name: tracer)
    with tracer.start_as_current_span("job") as job:
        call = connections._traces()("session", PATH)
        headers = dict(call.headers())
        call.end("OK")
    assert headers["traceparent"].split("-")[1] == f"{job.get_span_context().trace_id:032x}"


def test_calls_have_no_trace_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert connections._traces()("session", PATH).headers() == ()
