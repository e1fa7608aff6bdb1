"""Traces as JSON: what the mesh writes, what backends answer, and what is no trace."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1 import trace_pb2
from spawnmesh_runtime.otlp_json import traces_json, traces_of_json
from spawnmesh_runtime.otlp_spans import spans_of

TRACE, OWN, PARENT = "ab" * 16, "cd" * 8, "ef" * 8


def traces() -> trace_pb2.TracesData:
    span = trace_pb2.Span(
        trace_id=bytes.fromhex(TRACE),
        span_id=bytes.fromhex(OWN),
        parent_span_id=bytes.fromhex(PARENT),
        name="Append",
        kind=trace_pb2.Span.SPAN_KIND_SERVER,
        start_time_unix_nano=1_700_000_000_000_000_001,
        end_time_unix_nano=1_700_000_000_000_000_002,
        status=trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR),
    )
    span.attributes.add(key="count").value.int_value = 2**60
    span.attributes.add(key="bytes").value.bytes_value = b"\x00\x01"
    batch = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=[span])])
    batch.resource.attributes.add(key="service.name").value.string_value = "transcript"
    return trace_pb2.TracesData(resource_spans=[batch])


def test_traces_come_back_as_they_were() -> None:
    assert traces_of_json(traces_json(traces())) == (traces(), True)


def test_ids_are_hex_and_kinds_are_numbers_as_otlp_says() -> None:
    traced = traces()
    traced.resource_spans[0].scope_spans[0].spans[0].links.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8)
    (span,) = json.loads(traces_json(traced))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["spanId"], span["parentSpanId"]) == (TRACE, OWN, PARENT)
    assert (span["kind"], span["startTimeUnixNano"]) == (2, "1700000000000000001")
    assert span["links"] == [{"traceId": "01" * 16, "spanId": "02" * 8}]


def test_answer_of_jaeger_has_the_trace_as_its_result() -> None:
    answer = json.dumps({"result": json.loads(traces_json(traces()))})
    assert traces_of_json(answer.encode()) == (traces(), True)


@pytest.mark.parametrize("status", [None, "COMPLETE", "PARTIAL"])
def test_answer_of_tempo_has_ids_in_base64_and_says_if_it_is_partial(status: str | None) -> None:
    content = json.loads(traces_json(traces()))
    (span,) = content["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for name in ("traceId", "spanId", "parentSpanId"):
        span[name] = b64encode(bytes.fromhex(span[name])).decode()
    span |= {
        "kind": "SPAN_KIND_SERVER",
        "events": [{"name": "left out"}],
        "status": {"code": "STATUS_CODE_ERROR"},
    }
    answer = {"trace": content, "metrics": {"inspectedBytes": "1"}} | ({"status": status} if status else {})
    assert traces_of_json(json.dumps(answer).encode()) == (traces(), status != "PARTIAL")


@pytest.mark.parametrize("empty", [{"trace": {}}, {"result": {"resourceSpans": []}}, {"resourceSpans": []}])
def test_a_trace_without_spans_is_one(empty: object) -> None:
    assert traces_of_json(json.dumps(empty).encode()) == (trace_pb2.TracesData(), True)


def in_span(**fields: object) -> object:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}


@pytest.mark.parametrize(
    "other",
    [
        {}, [], None, 7, "trace", ["result"], {"result": []}, {"result": None}, {"data": [{"traceID": TRACE}]},
        {"error": {"httpCode": 500, "message": "no"}}, {"resourceSpans": {"a": 1}}, {"resourceSpans": [7]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [None]}]}]}, in_span(spanId=7), in_span(spanId="?" * 12),
        in_span(traceId="g" * 32), in_span(name=["a"]), in_span(startTimeUnixNano="soon"),
        in_span(startTimeUnixNano=2**64), in_span(startTimeUnixNano=-1), in_span(kind={}), in_span(attributes="a"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_anything_else_is_no_trace(other: object) -> None:
    with pytest.raises(ValueError, match="no trace as OTLP JSON"):
        traces_of_json(json.dumps(other).encode())


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[" * 100_000, b'{"trace":' * 100_000, b"NaN"])
def test_other_bytes_are_no_trace(body: bytes) -> None:
    with pytest.raises(ValueError, match="no trace as OTLP JSON"):
        traces_of_json(body)


def test_values_within_values_are_read_to_a_depth() -> None:
    deep: object = {"stringValue": "end"}
    for _ in range(50):
        deep = {"arrayValue": {"values": [deep]}}
    with pytest.raises(ValueError, match="no trace as OTLP JSON"):
        traces_of_json(json.dumps(in_span(attributes=[{"key": "a", "value": deep}])).encode())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats() | st.text(max_size=9) | st.just(OWN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["resourceSpans", "scopeSpans", "spans", "spanId", "name", "kind", "attributes", "key",
                         "value", "stringValue", "intValue", "status", "code", "trace", "result", "resource"]),
        inner, max_size=4,
    ),
    max_leaves=25,
)  # fmt: skip


@given(_JSON)
def test_no_answer_of_a_backend_is_more_than_refused(answer: object) -> None:
    try:
        found, _ = traces_of_json(json.dumps(answer).encode())
    except ValueError:
        return
    for span in spans_of(found.resource_spans):
        assert isinstance(span.name, str)


def test_numbers_that_no_enum_has_are_named_by_themselves() -> None:
    body = json.dumps(in_span(name="odd", kind=99, status={"code": 77})).encode()
    (span,) = spans_of(traces_of_json(body)[0].resource_spans)
    assert (span.name, span.kind, span.status, span.service) == ("odd", "99", "77", "")
