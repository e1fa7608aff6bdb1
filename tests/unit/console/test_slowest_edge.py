"""The slowest edge: the call between two services whose client span is longer than its server spans
by the most.
"""

from hypothesis import given
from spawnmesh_console.domain.slowest_edge import slowest_edge
from spawnmesh_console.domain.trace_spans import well_formed
from spawnmesh_core.spans import Span

from tests.support.console.trace_spans import MS, TRACE, traced, traces


def call(name: str, called: str, took: float, worked: float, *, caller: str = "session") -> list[Span]:
    rpc = f"spawnmesh.x.v1.XService/{name}"
    return [
        traced(name, "root", end=took, name=rpc, service=caller, kind="client"),
        traced(f"{name}-served", name, start=1, end=1 + worked, name=rpc, service=called, kind="server"),
    ]


def test_the_call_that_was_on_its_way_for_longest() -> None:
    spans = [*call("Append", "transcript", 41, 12), *call("Ask", "hook", 500, 490)]
    edge = slowest_edge(spans)
    assert edge is not None
    assert (edge.caller, edge.called, edge.method) == ("session", "transcript", "Append")
    assert (edge.call_nanos, edge.edge_nanos) == (41 * MS, 29 * MS)
    assert (edge.client_span_id, edge.server_span_ids) == ("Append", {"Append-served"})


def test_a_call_that_was_served_twice_counts_with_both_answers() -> None:
    again = traced("again", "Append", end=20, service="transcript", kind="server")
    edge = slowest_edge([*call("Append", "transcript", 41, 12), again])
    assert edge is not None
    assert (edge.edge_nanos, edge.server_span_ids) == (9 * MS, {"Append-served", "again"})


def test_other_spans_are_no_calls_between_services() -> None:
    within = call("Own", "session", 90, 1)
    unanswered = traced("lost", "root", end=90, service="session", kind="client")
    internal = [
        traced("step", "root", end=90),
        traced("served", "step", end=1, service="hook", kind="server"),
    ]
    longer_inside = call("Skewed", "hook", 10, 30)
    assert slowest_edge([*within, unanswered, *internal, *longer_inside]) is None
    assert slowest_edge([]) is None


@given(traces())
def test_no_edge_is_slower(drawn: list[Span]) -> None:
    spans = well_formed(drawn, TRACE)
    by_id = {one.span_id: one for one in spans}
    left = {one.span_id: one.end_unix_nanos - one.start_unix_nanos for one in spans}
    called = set()
    for one in spans:
        client = by_id.get(one.parent_span_id)
        if client and (client.kind, one.kind) == ("client", "server") and client.service != one.service:
            called.add(client.span_id)
            left[client.span_id] -= one.end_unix_nanos - one.start_unix_nanos
    edge, most = slowest_edge(spans), max((left[one] for one in called), default=0)
    assert (edge.edge_nanos if edge else 0) == max(most, 0)
    if edge is not None:
        assert left[edge.client_span_id] == most
