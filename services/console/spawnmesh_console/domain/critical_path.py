"""The critical path of a trace: the chain of spans that determines when the trace ends.

At each instant it is in the deepest span on the way that leads, from the roots down, to the child
that ends last. Here a child runs while it or a descendant of it runs, because a run goes on when
the spawn above it has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.spans import Span, span_tree


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A part of the critical path. Times are in nanoseconds since 1970."""

    span_id: str
    start_nanos: int
    end_nanos: int


def critical_path(spans: Sequence[Span]) -> list[PathSegment]:
    """Return the segments by time, for a well-formed trace.

    They do not overlap, and cover each instant at which a span runs, and no other one.
    """
    below: dict[str, list[list[PathSegment]]] = {}
    """The segments of each child of a span. Roots are the children of ''."""
    known = {span.span_id for span in spans}
    for span in reversed([span for _, span in span_tree(spans)]):
        within = _last_to_end_first(below.pop(span.span_id, []))
        own = PathSegment(span.span_id, span.start_unix_nanos, span.end_unix_nanos)
        parent = span.parent_span_id if span.parent_span_id in known else ""
        below.setdefault(parent, []).append(_over(within, [own]))
    return _last_to_end_first(below.pop("", []))


def _last_to_end_first(children: list[list[PathSegment]]) -> list[PathSegment]:
    merged: list[PathSegment] = []
    for segments in sorted(filter(None, children), key=lambda one: one[-1].end_nanos, reverse=True):
        merged = _over(merged, segments)
    return merged


def _over(upper: list[PathSegment], lower: list[PathSegment]) -> list[PathSegment]:
    """Return all of `upper`, and the parts of `lower` at other times. Both are in order."""
    found, place = [*upper], 0
    for one in lower:
        start = one.start_nanos
        while place < len(upper) and upper[place].end_nanos <= start:
            place += 1
        ahead = place
        while start < one.end_nanos:
            over = upper[ahead] if ahead < len(upper) else None
            end = one.end_nanos if over is None else min(over.start_nanos, one.end_nanos)
            if end > start:
                found.append(PathSegment(one.span_id, start, end))
            if over is None or over.start_nanos >= one.end_nanos:
                break
            start = over.end_nanos
            ahead += 1
    return sorted(found, key=lambda segment: segment.start_nanos)
