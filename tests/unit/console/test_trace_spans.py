"""The spans of a trace that a person may see: well-formed ones, of the own tenant, not too many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.trace_spans import limited, missing_parent_count, spans_of_tenant, well_formed
from spawnmesh_core.spans import Span, span_tree

from tests.support.console.trace_spans import TENANT, TRACE, named, traced, traces

OWN, OTHER = "acme", "globex"


def shown(*spans: Span, tenant_id: str = OWN) -> set[str]:
    return {one.span_id for one in spans_of_tenant(well_formed(spans, TRACE), tenant_id)}


@given(traces())
def test_a_well_formed_trace_is_a_forest_with_each_id_once(spans: list[Span]) -> None:
    found = well_formed(spans, TRACE)
    assert [one.span_id for one in found] == [*dict.fromkeys(one.span_id for one in found)]
    assert {one.span_id for one in found} == {one.span_id for one in spans}
    assert sorted(one.span_id for _, one in span_tree(found)) == sorted(one.span_id for one in found)
    assert all(one.start_unix_nanos <= one.end_unix_nanos for one in found)


def test_the_last_to_end_of_two_spans_with_one_id_stays_and_other_traces_go() -> None:
    lost, whole = traced("a", end=5, name="lost"), traced("a", end=9, name="whole")
    other = traced("b", trace_id="cd" * 16)
    for order in ([lost, whole, other], [other, whole, lost]):
        assert [one.name for one in well_formed(order, TRACE)] == ["whole"]


def test_a_circle_of_parents_has_one_root() -> None:
    found = well_formed([traced("a", "c"), traced("b", "a"), traced("c", "b"), traced("d", "d")], TRACE)
    assert [(one.span_id, one.parent_span_id) for one in found] == [
        ("a", ""),
        ("b", "a"),
        ("c", "b"),
        ("d", ""),
    ]


def test_spans_inherit_the_tenant_of_the_nearest_span_above_that_names_one() -> None:
    trace = [
        named("spawn", "", OWN),
        traced("step", "spawn"),
        traced("call", "step", kind="client"),
        named("foreign", "call", OTHER),
        traced("inside", "foreign"),
        named("back", "inside", OWN),
        traced("deep", "back"),
    ]
    assert shown(*trace) == {"spawn", "step", "call", "back", "deep"}
    assert shown(*trace, tenant_id=OTHER) == {"foreign", "inside"}


def test_two_tenants_below_one_span_of_a_trusted_issuer_see_their_own_calls_alone() -> None:
    trace = [
        traced("gateway", name="POST /batch"),
        named("a", "gateway", OWN),
        named("b", "gateway", OTHER),
        traced("a1", "a"),
        traced("b1", "b"),
        traced("unknown", "gateway"),
        traced("calls", "gateway", kind="client"),
        named("b2", "calls", OTHER),
    ]
    assert shown(*trace) == {"a", "a1"}
    assert shown(*trace, tenant_id=OTHER) == {"b", "b1", "calls", "b2"}


def test_a_span_above_the_calls_of_one_tenant_alone_is_that_tenants() -> None:
    trace = [traced("gateway"), traced("part", "gateway"), named("a", "part", OWN), traced("leaf", "gateway")]
    assert shown(*trace) == {"gateway", "part", "a", "leaf"}
    assert shown(*trace, tenant_id=OTHER) == set()


def test_spans_of_a_run_that_goes_on_are_known_by_the_calls_beside_them() -> None:
    """The attempt above them has not ended, so it is not here, and it is the same one for all."""
    trace = [
        traced("tool", "attempt", name="execute_tool list_files", service="runner"),
        traced("call", "attempt", kind="client", service="runner"),
        named("append", "call", OWN, service="transcript"),
        traced("lost", "elsewhere"),
    ]
    assert shown(*trace) == {"tool", "call", "append"}
    assert shown(*trace, named("foreign", "attempt", OTHER)) == {"call", "append"}


def test_a_trace_that_names_no_tenant_shows_nothing() -> None:
    assert shown(traced("a"), traced("b", "a")) == set()
    assert shown(named("a", "", OWN), tenant_id="") == set()
    assert shown(named("a", "", ""), traced("b", "a"), tenant_id="") == set()


@pytest.mark.parametrize("value", [7, None, ["acme"], b"acme", {"a": 1}])
def test_a_tenant_that_is_no_text_is_another_one(value: object) -> None:
    assert shown(
        named("root", "", OWN), traced("a", "root", spawnmesh__tenant__id=value), traced("b", "a")
    ) == {"root"}


@given(traces(tenants=(OWN, OTHER)))
def test_no_span_of_another_tenant_is_ever_shown(spans: list[Span]) -> None:
    trace = well_formed(spans, TRACE)
    by_id = {one.span_id: one for one in trace}
    mine = {one.span_id for one in spans_of_tenant(trace, OWN)}
    assert mine.isdisjoint(one.span_id for one in spans_of_tenant(trace, OTHER))
    for one in trace:
        above: Span | None = one
        while above is not None and TENANT not in above.attributes:
            above = by_id.get(above.parent_span_id)
        if above is not None:
            assert (one.span_id in mine) == (above.attributes[TENANT] == OWN)


def test_missing_parents_are_counted_once() -> None:
    spans = [traced("a"), traced("b", "gone"), traced("c", "gone"), traced("d", "lost"), traced("e", "a")]
    assert missing_parent_count(spans) == 2


@given(traces(), st.integers(1, 8), st.sets(st.sampled_from("abcdefgh"), max_size=3))
def test_a_limited_trace_has_the_longest_spans_and_all_above_them(
    drawn: list[Span], max_count: int, first: set[str]
) -> None:
    spans = well_formed(drawn, TRACE)
    kept = limited(spans, max_count, first)
    assert len(kept) <= max_count
    assert kept == [one for one in spans if one in kept], "in the same order"
    known, ids = {one.span_id for one in spans}, {one.span_id for one in kept}
    for one in kept:
        assert one.parent_span_id in ids or one.parent_span_id not in known
    if len(spans) <= max_count:
        assert kept == spans


def test_a_trace_of_thousands_is_limited_to_its_longest_spans() -> None:
    spans = well_formed(
        [traced("root", end=10_000), *(traced(f"{n:05}", "root", end=n) for n in range(9_000))], TRACE
    )
    kept = {one.span_id for one in limited(spans, 300, {"00007"})}
    assert kept == {"root", "00007", *(f"{n:05}" for n in range(9_000 - 298, 9_000))}


def test_a_chain_of_thousands_is_limited_from_its_root() -> None:
    chain = [traced(f"{n:05}", f"{n - 1:05}" if n else "", end=9_000 - n) for n in range(9_000)]
    assert [one.span_id for one in limited(well_formed(chain, TRACE), 3)] == ["00000", "00001", "00002"]
