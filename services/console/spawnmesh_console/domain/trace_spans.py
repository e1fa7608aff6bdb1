"""The spans of a trace that a person may see. A collector has the spans of all tenants."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from spawnmesh_core.spans import Span, by_start, span_tree

_TENANT = "spawnmesh.tenant.id"


def well_formed(spans: Iterable[Span], trace_id: str) -> list[Span]:
    """Return the spans of the trace by start: each id once, none before its own start, and no
    circle of parents.

    Of several spans with one id, the last to end stays. In a circle, one span becomes a root.
    """
    by_id: dict[str, Span] = {}
    for span in spans:
        known = by_id.get(span.span_id)
        is_newer = known is None or span.end_unix_nanos > known.end_unix_nanos
        if span.trace_id == trace_id and span.span_id and is_newer:
            by_id[span.span_id] = span
    roots = _roots_of_circles(by_id)
    return sorted(
        (
            replace(
                span,
                parent_span_id="" if span.span_id in roots else span.parent_span_id,
                end_unix_nanos=max(span.end_unix_nanos, span.start_unix_nanos),
            )
            for span in by_id.values()
        ),
        key=by_start,
    )


def _roots_of_circles(by_id: dict[str, Span]) -> set[str]:
    roots, seen = set[str](), set[str]()
    for span_id in sorted(by_id):
        path, above = set[str](), span_id
        while above in by_id and above not in seen:
            seen.add(above)
            path.add(above)
            above = by_id[above].parent_span_id
        if above in path:
            roots.add(above)
    return roots


def spans_of_tenant(spans: Sequence[Span], tenant_id: str) -> list[Span]:
    """Return the spans that belong to the tenant, from a well-formed trace.

    The server spans of the mesh name the tenant of the call. Another span belongs to the tenant of
    the nearest span above it that names one. If none does, it belongs to the tenant of the calls
    below it, provided that all of them name the same one; without calls below it, to that of its
    parent. A parent that is missing counts like one that names none.
    """
    tree = [span for _, span in span_tree(spans)]
    named = {span.span_id: str(span.attributes[_TENANT]) for span in tree if _TENANT in span.attributes}
    below: dict[str, set[str]] = {}
    for span in reversed(tree):
        own = named.get(span.span_id)
        inside = below.get(span.span_id, set()) if own is None else {own}
        below.setdefault(span.parent_span_id, set()).update(inside)
    above: dict[str, str] = {}
    """The tenant of each span that is named, or has a named one above it."""
    guessed: dict[str, str] = {}
    """The tenant of each other span and of missing parents, where the calls below it agree."""
    for span in tree:
        owner = named.get(span.span_id, above.get(span.parent_span_id))
        if owner is not None:
            above[span.span_id] = owner
        elif below.get(span.span_id):
            guessed[span.span_id] = _only(below[span.span_id])
        elif span.parent_span_id:
            parent = guessed.get(span.parent_span_id)
            guessed[span.span_id] = _only(below[span.parent_span_id]) if parent is None else parent
    owners = {**guessed, **above}
    return [span for span in spans if tenant_id and owners.get(span.span_id) == tenant_id]


def _only(tenants: Collection[str]) -> str:
    """Return the one tenant; empty if there are several or none."""
    return next(iter(tenants)) if len(tenants) == 1 else ""


def missing_parent_count(spans: Sequence[Span]) -> int:
    """Return the number of parents that are not among the spans."""
    return len({span.parent_span_id for span in spans} - {"", *(span.span_id for span in spans)})


def limited(spans: Sequence[Span], max_count: int, first: Collection[str] = ()) -> list[Span]:
    """Return at most so many spans: those whose id is in `first`, and then the longest ones, each
    with all that is above it.
    """
    if len(spans) <= max_count:
        return [*spans]
    by_id = {span.span_id: span for span in spans}
    kept: set[str] = set()
    for span in sorted(spans, key=lambda one: (one.span_id not in first, -one.duration_ms, by_start(one))):
        line: list[str] = []
        above: Span | None = span
        while above is not None and above.span_id not in kept and len(kept) + len(line) <= max_count:
            line.append(above.span_id)
            above = by_id.get(above.parent_span_id)
        if len(kept) + len(line) <= max_count:
            kept.update(line)
    return [span for span in spans if span.span_id in kept]
