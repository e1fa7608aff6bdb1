"""The slowest edge of a trace: the call between two services that was on its way for longest."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.condensed_spans import method_name
from spawnmesh_core.spans import Span


@dataclass(frozen=True, slots=True)
class SlowestEdge:
    """A call between two services. `edge_nanos` is the part of the call in which the called service
    did not work on it: the way, the wait to be served, and the way back.
    """

    caller: str
    called: str
    method: str
    client_span_id: str
    server_span_ids: frozenset[str]
    call_nanos: int
    edge_nanos: int


def slowest_edge(spans: Sequence[Span]) -> SlowestEdge | None:
    """Return the call whose client span is longer than its server spans by the most; None without
    such a call.
    """
    by_id = {span.span_id: span for span in spans}
    served: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        client = by_id.get(span.parent_span_id)
        is_call = client is not None and client.kind == "client" and span.kind == "server"
        if client is not None and is_call and client.service != span.service:
            served[client.span_id].append(span)
    edges = [_edge(by_id[client_id], servers) for client_id, servers in served.items()]
    slowest = max(edges, key=lambda edge: (edge.edge_nanos, edge.client_span_id), default=None)
    return slowest if slowest is not None and slowest.edge_nanos > 0 else None


def _edge(client: Span, servers: Sequence[Span]) -> SlowestEdge:
    call = client.end_unix_nanos - client.start_unix_nanos
    work = sum(server.end_unix_nanos - server.start_unix_nanos for server in servers)
    return SlowestEdge(
        client.service,
        servers[0].service,
        method_name(client.name),
        client.span_id,
        frozenset(server.span_id for server in servers),
        call,
        call - work,
    )
