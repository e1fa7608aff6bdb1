"""A trace as it is drawn: a row for each span on one time axis, with the critical path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from spawnmesh_core.condensed_spans import method_name
from spawnmesh_core.spans import Span, span_tree

from spawnmesh_console.domain.critical_path import PathSegment, critical_path
from spawnmesh_console.domain.slowest_edge import SlowestEdge
from spawnmesh_console.domain.span_facts import span_facts
from spawnmesh_console.domain.time_axis import Tick, ticks

_OWN_COLOURS = ("session", "runner", "transcript", "model-router", "attachment-blob", "hook")
"""The services of the mesh, each with a colour of its own: the same one in all traces."""
_FURTHER_COLOURS = 2  # Other services, such as plugins, share these.
_LEAST_PERCENT = 0.25
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the axis, in percent of it."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class ShownService:
    """A service of a trace, and the number of its colour."""

    name: str
    colour: int


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """A span. `path` are the parts of the critical path in it, of `path_nanos` together. `edge` is
    the whole call, if the span is a side of the slowest edge.
    """

    name: str
    service: ShownService
    depth: int
    start_nanos: int
    nanos: int
    is_failed: bool
    facts: Sequence[str]
    bar: Bar
    path: Sequence[Bar]
    path_nanos: int
    edge: Bar | None


@dataclass(frozen=True, slots=True)
class PathLink:
    """The critical path goes from one row to another: `x` is in percent, rows are numbers."""

    x: float
    first_row: int
    last_row: int


@dataclass(frozen=True, slots=True)
class PathShare:
    """The part of the critical path that spans of one name have, and its percentage of all time."""

    service: ShownService
    name: str
    nanos: int
    percent: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The picture. `shares` are those of the critical path, the largest one first."""

    rows: Sequence[WaterfallRow]
    links: Sequence[PathLink]
    shares: Sequence[PathShare]
    services: Sequence[ShownService]
    ticks: Sequence[Tick]
    begin_time: datetime
    total_nanos: int


def waterfall(spans: Sequence[Span], edge: SlowestEdge | None, whole: Sequence[Span]) -> Waterfall:
    """Draw the spans, some of those of the `whole` trace, which gives the length of the axis.

    Both are well-formed, and neither is empty.
    """
    begin = min(span.start_unix_nanos for span in whole)
    total = max(span.end_unix_nanos for span in whole) - begin
    services = _services(whole)
    path = critical_path(spans)

    def bar(start_nanos: int, end_nanos: int) -> Bar:
        x = 100 * (start_nanos - begin) / max(total, 1)
        width = max(100 * (end_nanos - start_nanos) / max(total, 1), _LEAST_PERCENT)
        return Bar(round(min(x, 100 - width), 3), round(width, 3))

    parts: dict[str, list[PathSegment]] = {span.span_id: [] for span in spans}
    for segment in path:
        parts[segment.span_id].append(segment)
    call = _call_of(edge, whole)
    rows: list[WaterfallRow] = []
    places: dict[str, int] = {}
    for depth, span in span_tree(spans):
        places[span.span_id] = len(rows)
        is_edge = edge is not None and span.span_id in {edge.client_span_id, *edge.server_span_ids}
        rows.append(
            WaterfallRow(
                name=method_name(span.name),
                service=services[span.service],
                depth=min(depth, _MAX_DEPTH),
                start_nanos=span.start_unix_nanos - begin,
                nanos=span.end_unix_nanos - span.start_unix_nanos,
                is_failed=span.status == "error",
                facts=span_facts(span),
                bar=bar(span.start_unix_nanos, span.end_unix_nanos),
                path=[bar(part.start_nanos, part.end_nanos) for part in parts[span.span_id]],
                path_nanos=sum(part.end_nanos - part.start_nanos for part in parts[span.span_id]),
                edge=bar(call.start_unix_nanos, call.end_unix_nanos) if call and is_edge else None,
            )
        )
    return Waterfall(
        rows,
        _links(path, places, begin, total),
        _shares(path, {span.span_id: span for span in spans}, services, total),
        list(services.values()),
        ticks(total),
        datetime.fromtimestamp(begin / 1_000_000_000, UTC),
        total,
    )


def _services(spans: Sequence[Span]) -> dict[str, ShownService]:
    names = sorted({span.service for span in spans})
    others = [name for name in names if name not in _OWN_COLOURS]
    colours = {name: place for place, name in enumerate(_OWN_COLOURS)}
    colours |= {name: len(_OWN_COLOURS) + place % _FURTHER_COLOURS for place, name in enumerate(others)}
    return {name: ShownService(name, colours[name]) for name in names}


def _call_of(edge: SlowestEdge | None, whole: Sequence[Span]) -> Span | None:
    return next((span for span in whole if edge and span.span_id == edge.client_span_id), None)


def _links(path: Sequence[PathSegment], places: Mapping[str, int], begin: int, total: int) -> list[PathLink]:
    """Return a link wherever the path goes on in another row without a pause."""
    links = []
    for one, after in pairwise(path):
        first, last = sorted((places[one.span_id], places[after.span_id]))
        if first != last and one.end_nanos == after.start_nanos:
            links.append(PathLink(round(100 * (after.start_nanos - begin) / max(total, 1), 3), first, last))
    return links


def _shares(
    path: Sequence[PathSegment],
    by_id: Mapping[str, Span],
    services: Mapping[str, ShownService],
    total: int,
) -> list[PathShare]:
    nanos: dict[tuple[str, str], int] = {}
    for segment in path:
        span = by_id[segment.span_id]
        key = span.service, method_name(span.name)
        nanos[key] = nanos.get(key, 0) + segment.end_nanos - segment.start_nanos
    shares = [
        PathShare(services[service], name, time, 100 * time / max(total, 1))
        for (service, name), time in nanos.items()
    ]
    return sorted(shares, key=lambda share: (-share.nanos, share.service.name, share.name))
