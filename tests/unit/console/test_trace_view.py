"""The trace of a session as its page shows it: the spans that tell, the edge, and what is left out."""

from hypothesis import given
from spawnmesh_console.domain.trace_problems import TraceProblem, words_for
from spawnmesh_console.domain.trace_view import MAX_ROWS, TraceView, trace_view
from spawnmesh_core.spans import Span

from tests.support.console.trace_spans import TRACE, named, traced, traces

OWN = "acme"


def view_of(*spans: Span, every_span: bool = False) -> TraceView:
    view = trace_view(spans, trace_id=TRACE, tenant_id=OWN, every_span=every_span)
    assert view is not None
    return view


def call(span_id: str, parent: str, start: float, took: float, worked: float) -> list[Span]:
    rpc, end = "spawnmesh.x.v1.XService/Append", start + took
    client = traced(span_id, parent, start=start, end=end, name=rpc, kind="client")
    return [
        client,
        named(f"{span_id}-served", span_id, OWN, start=end - worked, end=end, name=rpc, service="transcript"),
    ]


ROOT = named("root", "", OWN, end=10_000, name="spawnmesh.session.v1.SessionService/SpawnSession")


def test_the_slowest_edge_is_shown_however_short_it_is() -> None:
    spans = [ROOT, *call("long", "root", 10, 900, 899.5), *call("quick", "root", 1000, 4, 1)]
    view = view_of(*spans)
    assert view.edge is not None
    assert view.edge.client_span_id == "quick"
    assert [(row.name, row.service.name, row.edge is not None) for row in view.picture.rows] == [
        ("SpawnSession", "session", False), ("Append", "transcript", False), ("Append", "transcript", True),
    ]  # fmt: skip
    assert (view.span_count, view.is_condensed, view.is_limited) == (5, True, False)


def test_every_span_is_shown_to_those_who_want_it() -> None:
    view = view_of(ROOT, *call("quick", "root", 1000, 4, 1), every_span=True)
    assert [row.depth for row in view.picture.rows] == [0, 1, 2]
    assert (view.is_condensed, view.is_limited) == (False, False)


def test_of_thousands_of_spans_the_longest_are_shown() -> None:
    chats = [traced(f"{n:05}", "root", start=n, end=2 * n + 1, name=f"chat {n}") for n in range(3_000)]
    for every_span in (False, True):
        view = view_of(ROOT, *chats, *call("quick", "root", 0, 4, 1), every_span=every_span)
        assert len(view.picture.rows) == MAX_ROWS
        assert view.span_count == 3_003
        assert view.is_limited
        sides = [row for row in view.picture.rows if row.edge is not None]
        assert len(sides) == (2 if every_span else 1)


def test_spans_of_other_tenants_are_neither_shown_nor_counted() -> None:
    foreign = named("foreign", "root", "globex", start=0, end=99_000, name="secret")
    view = view_of(ROOT, foreign, traced("inside", "foreign", end=99_000))
    assert [row.name for row in view.picture.rows] == ["SpawnSession"]
    assert (view.span_count, view.picture.total_nanos) == (1, 10_000 * 1_000_000)
    assert trace_view([ROOT], trace_id=TRACE, tenant_id="globex") is None
    assert trace_view([ROOT], trace_id="cd" * 16, tenant_id=OWN) is None


def test_missing_parents_are_said() -> None:
    assert view_of(ROOT, named("late", "attempt", OWN)).missing_parent_count == 1


@given(traces(tenants=(OWN, "globex")))
def test_any_trace_can_be_viewed(spans: list[Span]) -> None:
    for every_span in (False, True):
        view = trace_view(spans, trace_id=TRACE, tenant_id=OWN, every_span=every_span)
        if view is not None:
            assert 1 <= len(view.picture.rows) <= view.span_count


def test_each_problem_says_what_it_is_and_what_to_do() -> None:
    words = [words_for(problem) for problem in TraceProblem]
    assert len({one.sentence for one in words}) == len(TraceProblem)
    assert all(one.sentence.endswith(".") and one.advice.endswith(".") for one in words)
