"""The trace of a session as its page shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.condensed_spans import condensed
from spawnmesh_core.spans import Span

from spawnmesh_console.domain.slowest_edge import SlowestEdge, slowest_edge
from spawnmesh_console.domain.trace_spans import limited, missing_parent_count, spans_of_tenant, well_formed
from spawnmesh_console.domain.waterfall import Waterfall, waterfall

MAX_ROWS = 300


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace. `span_count` is the number of its spans that belong to the tenant.

    `is_condensed`: spans that say little are left out. `is_limited`: only the longest spans are
    shown, because there are too many.
    """

    picture: Waterfall
    span_count: int
    edge: SlowestEdge | None
    missing_parent_count: int
    is_condensed: bool
    is_limited: bool


def trace_view(
    spans: Sequence[Span], *, trace_id: str, tenant_id: str, every_span: bool = False
) -> TraceView | None:
    """Return the view of the tenant's spans in the trace; None if there are none."""
    own = spans_of_tenant(well_formed(spans, trace_id), tenant_id)
    if not own:
        return None
    edge = slowest_edge(own)
    of_edge = frozenset[str]() if edge is None else edge.server_span_ids
    told = own if every_span else condensed(own, of_edge)
    shown = limited(told, MAX_ROWS, of_edge)
    return TraceView(
        waterfall(shown, edge, own),
        len(own),
        edge,
        missing_parent_count(own),
        is_condensed=len(told) < len(own),
        is_limited=len(shown) < len(told),
    )
