"""The critical path: each instant is in the deepest span on the way to the child that ends last."""

from hypothesis import given
from spawnmesh_console.domain.critical_path import PathSegment, critical_path
from spawnmesh_console.domain.trace_spans import well_formed
from spawnmesh_core.spans import Span

from tests.support.console.trace_spans import MS, TRACE, traced, traces


def path_of(*spans: Span) -> list[tuple[str, float, float]]:
    return [
        (one.span_id, one.start_nanos / MS, one.end_nanos / MS)
        for one in critical_path(well_formed(spans, TRACE))
    ]


def test_time_without_children_is_the_parents() -> None:
    assert path_of(traced("a", end=100), traced("b", "a", start=10, end=40), traced("c", "a", start=50, end=90)) == [
        ("a", 0, 10), ("b", 10, 40), ("a", 40, 50), ("c", 50, 90), ("a", 90, 100),
    ]  # fmt: skip


def test_of_children_that_run_at_once_the_last_to_end_counts() -> None:
    short, long = traced("b", "a", start=10, end=40), traced("c", "a", start=20, end=90)
    assert path_of(traced("a", end=100), short, long) == [
        ("a", 0, 10), ("b", 10, 20), ("c", 20, 90), ("a", 90, 100),
    ]  # fmt: skip


def test_a_run_goes_on_when_its_spawn_has_ended() -> None:
    spawn, run = traced("spawn", end=50), traced("run", "spawn", start=30, end=900)
    store, attempt = traced("store", "spawn", start=10, end=45), traced("attempt", "run", start=100, end=800)
    assert path_of(spawn, store, run, attempt) == [
        ("spawn", 0, 10), ("store", 10, 30), ("run", 30, 100), ("attempt", 100, 800), ("run", 800, 900),
    ]  # fmt: skip


def test_no_span_has_the_time_between_two_runs() -> None:
    spawn = traced("spawn", end=10)
    runs = [traced("first", "spawn", start=5, end=100), traced("second", "spawn", start=500, end=700)]
    assert path_of(spawn, *runs) == [("spawn", 0, 5), ("first", 5, 100), ("second", 500, 700)]


def running(span: Span, nanos: int) -> bool:
    return span.start_unix_nanos <= nanos < span.end_unix_nanos


def owner_at(spans: list[Span], nanos: int) -> str | None:
    """Follow the definition, for one instant."""
    known = {one.span_id for one in spans}

    def family(span: Span) -> list[Span]:
        """Return the spans that run of the span and its descendants: one without time does not."""
        below = [member for one in spans if one.parent_span_id == span.span_id for member in family(one)]
        return [one for one in (span, *below) if one.start_unix_nanos < one.end_unix_nanos]

    owner, children = None, [one for one in spans if one.parent_span_id not in known]
    while True:
        live = [one for one in children if any(running(member, nanos) for member in family(one))]
        ends = {one.span_id: max(member.end_unix_nanos for member in family(one)) for one in live}
        if not live:
            return owner
        latest = max(ends.values())
        # Any of several that end together is on the way.
        chosen = [one for one in live if ends[one.span_id] == latest]
        if len(chosen) > 1:
            return "any"
        owner = chosen[0].span_id
        children = [one for one in spans if one.parent_span_id == owner]


def at(path: list[PathSegment], nanos: int) -> str | None:
    owners = [one.span_id for one in path if one.start_nanos <= nanos < one.end_nanos]
    assert len(owners) <= 1, "segments overlap"
    return owners[0] if owners else None


@given(traces())
def test_the_path_follows_its_definition_at_each_instant(drawn: list[Span]) -> None:
    spans = well_formed(drawn, TRACE)
    path = critical_path(spans)
    assert all(one.start_nanos < one.end_nanos for one in path)
    assert path == sorted(path, key=lambda one: one.start_nanos)
    for instant in range(25):
        nanos = instant * MS
        found, expected = at(path, nanos), owner_at(spans, nanos)
        assert (found is None) == (not any(running(one, nanos) for one in spans)), "all times of spans"
        if expected != "any":
            assert found == expected
        if found is not None:
            (span,) = [one for one in spans if one.span_id == found]
            assert running(span, nanos)


def test_a_deep_chain_has_a_path() -> None:
    chain = [traced(f"{n:05}", f"{n - 1:05}" if n else "", start=n, end=9_000 - n) for n in range(300)]
    assert len(critical_path(well_formed(chain, TRACE))) == 599
