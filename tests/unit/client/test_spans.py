"""Client spans of a program that has OpenTelemetry, and of one that has not."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from spawnmesh.session.v1 import session_service_pb2
from spawnmesh_client import connections

PATH = f"/{session_service_pb2.DESCRIPTOR.services_by_name['SessionService'].full_name}/GetSession"
WAITS = PATH.replace("Get", "Wait")


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


def test_calls_that_wait_begin_no_trace_and_continue_that_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    monkeypatch.setattr(trace, "get_tracer", lambda _name: tracer)
    begin = connections._traces()
    assert begin("session", WAITS).headers() == ()
    assert begin("session", PATH).headers() != ()
    with tracer.start_as_current_span("job") as job:
        headers = dict(begin("session", WAITS).headers())
    assert headers["traceparent"].split("-")[1] == f"{job.get_span_context().trace_id:032x}"
