"""Finished spans of a trace, as readers of traces have them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_NANOS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Span:
    """One finished span. Ids are in hex, times are in nanoseconds since 1970. A root has the parent
    ''.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    start_unix_nanos: int
    end_unix_nanos: int
    kind: str
    status: str
    status_message: str
    attributes: Mapping[str, object]
    links: Sequence[Mapping[str, object]]
    events: Sequence[Mapping[str, object]]

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return (self.end_unix_nanos - self.start_unix_nanos) / _NANOS_PER_MS


def by_start(span: Span) -> tuple[int, str]:
    """Return the spans in order of their start."""
    return span.start_unix_nanos, span.span_id


def span_tree(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Yield parents before children, siblings by start, each with its depth. A span whose parent is
    missing is like a root.
    """
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=by_start):
        children[span.parent_span_id if span.parent_span_id in known else ""].append(span)
    waiting = [(0, span) for span in reversed(children[""])]
    while waiting:
        depth, span = waiting.pop()
        yield depth, span
        waiting.extend((depth + 1, child) for child in reversed(children[span.span_id]))
