"""The trace sink, and the text that describes a recorded trace."""

import os
import sys

import grpc
import httpx2
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2
from spawnmesh_core.spans import Span
from spawnmesh_devstack.members import sink_member
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.processes import Command, start_process, until_ready
from spawnmesh_devstack.span_file import framed, load_all_spans, load_spans
from spawnmesh_devstack.trace_server import TraceAccess, make_headers
from spawnmesh_devstack.traces import edges, orphans, services, waterfall
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.otlp_json import traces_of_json
from spawnmesh_runtime.otlp_spans import spans_of

from tests.support.otlp import open_collector
from tests.support.waiting import eventually

TRACE = "ab" * 16
MS = 1_000_000


def span(span_id, parent, service, name, start_ms, end_ms, status="unset"):
    return Span(
        TRACE, span_id, parent, name, service, start_ms * MS, end_ms * MS, "server", status, "", {}, (), ()
    )


SPAWN = [
    span("01", "", "client", "spawn", 1000, 1100),
    span("02", "01", "session", "SpawnSession", 1010, 1090),
    span("03", "02", "session", "INSERT", 1020, 1030),
    span("05", "02", "transcript", "Append", 1060, 1080),
    span("04", "02", "attachment-blob", "Stage", 1030, 1050, status="error"),
]


def test_edges_lead_from_the_calling_service_to_the_called_one():
    assert edges(SPAWN) == [("client", "session"), ("session", "attachment-blob"), ("session", "transcript")]


def test_services_are_those_of_the_spans():
    assert services(SPAWN) == ["attachment-blob", "client", "session", "transcript"]


def test_a_span_is_an_orphan_when_its_parent_is_missing_and_a_root_is_none():
    assert orphans(SPAWN) == []
    assert [lost.span_id for lost in orphans(SPAWN[2:])] == ["03", "05", "04"]


def test_the_waterfall_shows_the_tree_with_offsets_durations_and_bars():
    lines = [line.plain for line in waterfall(SPAWN, 100)]

    assert [line[:45].rstrip() for line in lines] == [
        "client spawn",
        "  session SpawnSession",
        "    session INSERT",
        "    attachment-blob Stage",
        "    transcript Append",
    ]
    assert lines[3][45:69].split() == ["30.0", "20.0", "ms"]
    bars = [line[69:] for line in lines]
    assert bars[0] == "█" * 31
    assert bars[4].index("█") == 31 * 60 // 100
    assert {len(line) for line in lines} == {100}


def test_the_waterfall_keeps_its_width_for_long_names_and_instant_spans():
    odd = [span("01", "", "s" * 300, "n", 5, 5), span("02", "gone", "漢字" * 40, "instant at the end", 5, 5)]

    for line in waterfall(odd, 80):
        assert line.cell_len == 80
        assert "█" in line.plain
    assert waterfall([], 80) == []


@pytest.fixture(scope="module")
async def sink(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sink")
    port, traces_port = free_ports(2)
    access = TraceAccess(traces_port, make_headers(directory))
    argv = (
        sys.executable,
        "-m",
        "spawnmesh_devstack.otlp_sink",
        "--port",
        str(port),
        "--file",
        str(directory / "f"),
        "--traces-port",
        str(traces_port),
        "--headers-file",
        str(access.headers_file),
    )
    with Watchdog() as watchdog:
        process = start_process(Command("sink", argv, directory / "log"), watchdog)
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:

            async def answers():
                return channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

            await until_ready(process, answers, 15)
            yield trace_service_pb2_grpc.TraceServiceStub(channel), directory / "f", access
        await process.stop()
        assert process.returncode == 0


def text(value):
    return AnyValue(string_value=value)


async def test_an_exported_span_is_in_the_file_when_the_export_is_answered(sink):
    exporter, file, _ = sink
    trace_id = os.urandom(16)
    sent = trace_pb2.Span(
        trace_id=trace_id,
        span_id=b"\x02" * 8,
        parent_span_id=b"\x01" * 8,
        name="Append",
        kind=trace_pb2.Span.SPAN_KIND_SERVER,
        start_time_unix_nano=5 * MS,
        end_time_unix_nano=7 * MS,
        status=trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message="broken"),
        attributes=[
            KeyValue(key="count", value=AnyValue(int_value=3)),
            KeyValue(key="names", value=AnyValue(array_value=ArrayValue(values=[text("a"), text("ü")]))),
        ],
        links=[trace_pb2.Span.Link(trace_id=b"\x0a" * 16, span_id=b"\x0b" * 8)],
        events=[trace_pb2.Span.Event(name="retry", time_unix_nano=6 * MS)],
    )
    resource = Resource(attributes=[KeyValue(key="service.name", value=text("transcript"))])
    batch = trace_pb2.ResourceSpans(resource=resource, scope_spans=[trace_pb2.ScopeSpans(spans=[sent])])

    await exporter.Export(trace_service_pb2.ExportTraceServiceRequest(resource_spans=[batch]))

    (got,) = load_spans(file, trace_id.hex())
    assert (got.service, got.name, got.kind, got.span_id, got.parent_span_id) == (
        "transcript",
        "Append",
        "server",
        "02" * 8,
        "01" * 8,
    )
    assert (got.status, got.status_message, got.duration_ms) == ("error", "broken", 2.0)
    assert got.attributes == {"count": 3, "names": ["a", "ü"]}
    assert got.links == [{"trace_id": "0a" * 16, "span_id": "0b" * 8, "attributes": {}}]
    assert got.events == [{"name": "retry", "unix_nanos": 6 * MS, "attributes": {}}]
    assert load_spans(file, "ff" * 16) == []


def exported(*trace_ids):
    """Return a request with a span of each trace, and of one more trace."""
    spans = [
        trace_pb2.Span(trace_id=one, span_id=one[:8], name=one.hex()) for one in (*trace_ids, b"\x0f" * 16)
    ]
    resource = Resource(attributes=[KeyValue(key="service.name", value=text("transcript"))])
    batch = trace_pb2.ResourceSpans(resource=resource, scope_spans=[trace_pb2.ScopeSpans(spans=spans)])
    return trace_service_pb2.ExportTraceServiceRequest(resource_spans=[batch])


async def test_a_trace_is_served_to_who_may_read_the_headers(sink):
    exporter, _, access = sink
    first, second = os.urandom(16), os.urandom(16)
    await exporter.Export(exported(first, second))
    await exporter.Export(exported(first))
    url = access.variables()["TRACES_URL"]
    name, _, value = access.headers_file.read_text().strip().partition(": ")
    async with httpx2.AsyncClient(trust_env=False) as client:
        for wrong in ({}, {name: "Bearer other"}, {name: value[:-1]}, {name: value.encode() + b"\xff"}):
            answer = await client.get(url.format(trace_id=first.hex()), headers=wrong)
            assert (answer.status_code, answer.content) == (401, b"")
        found = await client.get(url.format(trace_id=first.hex()), headers={name: value})
        assert found.headers["content-type"].startswith("application/json")
        spans = list(spans_of(traces_of_json(found.content)[0].resource_spans))
        assert [(one.trace_id, one.name, one.service) for one in spans] == [
            (first.hex(), first.hex(), "transcript")
        ] * 2
        for other, status in ((os.urandom(16).hex(), 404), ("f" * 31, 400), ("..%2fmesh.json", 400)):
            answer = await client.get(url.format(trace_id=other), headers={name: value})
            assert (answer.status_code, answer.content) == (status, b""), other


def test_headers_are_new_ones_for_each_mesh_and_for_its_owner_alone(tmp_path):
    first = make_headers(tmp_path).read_text()
    file = make_headers(tmp_path)
    assert file.read_text() != first
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_half_written_request_and_a_missing_file_are_no_error(tmp_path):
    file = tmp_path / "spans"
    sent = trace_pb2.Span(trace_id=bytes.fromhex(TRACE), name="spawn")
    batch = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=[sent])])
    whole = framed(trace_service_pb2.ExportTraceServiceRequest(resource_spans=[batch]).SerializeToString())

    for cut in range(len(whole)):
        file.write_bytes(whole + whole[:cut])
        assert [found.name for found in load_spans(file, TRACE)] == ["spawn"]
    file.write_bytes(whole * 2)
    assert len(load_all_spans(file)) == 2
    assert load_spans(tmp_path / "missing", TRACE) == []


async def test_sink_passes_all_telemetry_on_and_answers_whether_the_receiver_does_or_not(tmp_path):
    port, traces_port = free_ports(2)
    access = TraceAccess(traces_port, make_headers(tmp_path))
    async with open_collector("metrics", status=grpc.StatusCode.INTERNAL) as (endpoint, received):
        receiver = endpoint.removeprefix("http://")
        member = sink_member(port, tmp_path / "f", access, receiver)
        with Watchdog() as watchdog:
            process = start_process(Command("sink", member.argv, tmp_path / "log"), watchdog)
            async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
                exporter = metrics_service_pb2_grpc.MetricsServiceStub(channel)
                request = metrics_service_pb2.ExportMetricsServiceRequest()
                request.resource_metrics.add().scope_metrics.add().metrics.add(name="spawnmesh.runs")
                for _ in range(2):
                    await exporter.Export(request, wait_for_ready=True, timeout=30)
                await eventually(lambda: received == [request, request])
            await process.stop()
            assert process.returncode == 0
