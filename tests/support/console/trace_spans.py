"""Spans of traces that tests make up."""

from typing import Any

from hypothesis import strategies as st
from spawnmesh_core.spans import Span

TRACE = "ab" * 16
MS = 1_000_000
TENANT = "spawnmesh.tenant.id"


def traced(
    span_id: str,
    parent: str = "",
    *,
    start: float = 0,
    end: float = 10,
    name: str = "work",
    service: str = "session",
    kind: str = "internal",
    status: str = "unset",
    trace_id: str = TRACE,
    **attributes: Any,
) -> Span:
    """Return a span from start to end in milliseconds. `__` in names of attributes stands for `.`."""
    given = {key.replace("__", "."): value for key, value in attributes.items()}
    times = int(start * MS), int(end * MS)
    return Span(trace_id, span_id, parent, name, service, *times, kind, status, "", given, (), ())


def named(span_id: str, parent: str, tenant_id: str, **fields: Any) -> Span:
    """Return a server span that names its tenant."""
    return traced(span_id, parent, kind="server", spawnmesh__tenant__id=tenant_id, **fields)


@st.composite
def traces(draw: st.DrawFn, max_count: int = 12, *, tenants: tuple[str, ...] = ()) -> list[Span]:
    """Draw spans of any shape: parents that are missing or form circles, equal and empty times, one
    id twice.
    """
    ids = [*"abcdefgh", "missing"]
    spans = []
    for _ in range(draw(st.integers(1, max_count))):
        start = draw(st.integers(0, 12))
        tenant = draw(st.sampled_from(("", *tenants)))
        spans.append(
            traced(
                draw(st.sampled_from(ids[:-1])),
                draw(st.sampled_from(["", *ids])),
                start=start,
                end=start + draw(st.integers(-1, 8)),
                kind=draw(st.sampled_from(["internal", "client", "server"])),
                service=draw(st.sampled_from(["session", "hook"])),
                **({"spawnmesh__tenant__id": tenant} if tenant else {}),
            )
        )
    return spans
