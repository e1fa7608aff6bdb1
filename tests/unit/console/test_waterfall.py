"""A trace as it is drawn: rows, bars, the critical path through them, and the slowest edge."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.critical_path import critical_path
from spawnmesh_console.domain.slowest_edge import slowest_edge
from spawnmesh_console.domain.trace_spans import limited, well_formed
from spawnmesh_console.domain.waterfall import Bar, PathLink, Waterfall, waterfall
from spawnmesh_core.spans import Span

from tests.support.console.trace_spans import MS, TRACE, traced, traces

SPAWN = [
    traced("spawn", start=1000, end=1100, name="spawnmesh.session.v1.SessionService/SpawnSession"),
    traced("call", "spawn", start=1010, end=1060, name="x.YService/Append", kind="client"),
    traced("append", "call", start=1030, end=1040, name="x.YService/Append", service="transcript", kind="server"),
    traced("failed", "spawn", start=1070, end=1090, name="step", status="error", error__type="NOT_FOUND"),
]  # fmt: skip


def drawn(*spans: Span) -> Waterfall:
    return waterfall(spans, slowest_edge(spans), spans)


def test_rows_have_their_place_in_the_tree_and_on_the_axis() -> None:
    picture = drawn(*SPAWN)
    assert [(row.name, row.service.name, row.depth) for row in picture.rows] == [
        ("SpawnSession", "session", 0), ("Append", "session", 1), ("Append", "transcript", 2), ("step", "session", 1),
    ]  # fmt: skip
    assert [(row.start_nanos // MS, row.nanos // MS) for row in picture.rows] == [
        (0, 100), (10, 50), (30, 10), (70, 20),
    ]  # fmt: skip
    assert [(row.bar.x, row.bar.width) for row in picture.rows] == [(0, 100), (10, 50), (30, 10), (70, 20)]
    assert [row.is_failed for row in picture.rows] == [False, False, False, True]
    assert picture.rows[3].facts == ["NOT_FOUND"]
    assert picture.total_nanos == 100 * MS
    assert picture.begin_time == datetime.fromtimestamp(1, UTC)
    assert [(one.name, one.colour) for one in picture.services] == [("session", 0), ("transcript", 2)]


def test_the_critical_path_is_marked_and_leads_from_row_to_row() -> None:
    picture = drawn(*SPAWN)
    assert [row.path for row in picture.rows] == [
        [Bar(0, 10), Bar(60, 10), Bar(90, 10)], [Bar(10, 20), Bar(40, 20)], [Bar(30, 10)], [Bar(70, 20)],
    ]  # fmt: skip
    assert [row.path_nanos // MS for row in picture.rows] == [30, 40, 10, 20]
    assert picture.links == [
        PathLink(10, 0, 1), PathLink(30, 1, 2), PathLink(40, 1, 2), PathLink(60, 0, 1), PathLink(70, 0, 3),
        PathLink(90, 0, 3),
    ]  # fmt: skip
    assert [(one.service.name, one.name, one.nanos // MS, one.percent) for one in picture.shares] == [
        ("session", "Append", 40, 40), ("session", "SpawnSession", 30, 30), ("session", "step", 20, 20),
        ("transcript", "Append", 10, 10),
    ]  # fmt: skip


def test_no_line_leads_over_a_pause() -> None:
    runs = [traced("first", "spawn", start=5, end=100), traced("second", "spawn", start=500, end=700)]
    assert drawn(traced("spawn", end=5), *runs).links == [PathLink(0.714, 0, 1)]


def test_both_sides_of_the_slowest_edge_show_the_whole_call() -> None:
    assert [row.edge for row in drawn(*SPAWN).rows] == [None, Bar(10, 50), Bar(10, 50), None]
    shown = [SPAWN[0], SPAWN[2]]
    (_, served) = waterfall(shown, slowest_edge(SPAWN), SPAWN).rows
    assert served.edge == Bar(10, 50), "also without the row of the client"


def test_a_trace_without_time_can_be_drawn() -> None:
    (row,) = drawn(traced("a", start=5, end=5)).rows
    assert (row.bar.x, row.bar.width, row.path) == (0, 0.25, [])


def test_a_service_of_the_mesh_has_the_same_colour_in_all_traces_and_others_share_two() -> None:
    own = ["session", "runner", "transcript", "model-router", "attachment-blob", "hook"]
    for names in (own, own[3:]):
        found = drawn(*(traced(name, service=name) for name in names)).services
        assert {one.name: one.colour for one in found} == {name: own.index(name) for name in names}
    others = drawn(*(traced(name, service=name) for name in ("a", "b", "c", "hook"))).services
    assert [(one.name, one.colour) for one in others] == [("a", 6), ("b", 7), ("c", 6), ("hook", 5)]


def test_a_deep_trace_stays_on_the_page() -> None:
    chain = [traced(f"{n:02}", f"{n - 1:02}" if n else "", start=n, end=99) for n in range(40)]
    assert [row.depth for row in drawn(*chain).rows] == [*range(12), *[12] * 28]


@given(traces(), st.integers(1, 8))
def test_everything_stays_on_the_axis(spans: list[Span], count: int) -> None:
    whole = well_formed(spans, TRACE)
    shown = limited(whole, count)
    if not shown:
        return
    picture = waterfall(shown, slowest_edge(whole), whole)
    assert len(picture.rows) == len(shown)
    bars = [bar for row in picture.rows for bar in (row.bar, *row.path, *([row.edge] if row.edge else []))]
    for bar in bars:
        assert bar.x >= 0
        assert bar.width > 0
        assert bar.x + bar.width <= 100.01
    for link in picture.links:
        assert 0 <= link.x <= 100
        assert 0 <= link.first_row < link.last_row < len(shown)
    path = critical_path(shown)
    covered = sum(one.end_nanos - one.start_nanos for one in path)
    assert sum(one.nanos for one in picture.shares) == covered == sum(row.path_nanos for row in picture.rows)
    assert sum(one.percent for one in picture.shares) == pytest.approx(
        100 * covered / max(picture.total_nanos, 1)
    )
