"""Inspect a trace: its calls between services, missing spans, and a picture of it."""

from collections.abc import Sequence

from rich.text import Text
from spawnmesh_core.spans import Span, span_tree

_NANOS_PER_MS = 1_000_000
_NUMBERS_WIDTH = 24
_SHORTEST_BAR = 8
_SERVICE_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta")


def services(spans: Sequence[Span]) -> list[str]:
    """Return the names of its services, sorted."""
    return sorted({span.service for span in spans})


def edges(spans: Sequence[Span]) -> list[tuple[str, str]]:
    """Return the calls between services as (parent, child), unique and sorted. Spans inside of one
    service are no edge.
    """
    by_id = {span.span_id: span for span in spans}
    pairs = (
        (by_id[span.parent_span_id].service, span.service) for span in spans if span.parent_span_id in by_id
    )
    return sorted({(parent, child) for parent, child in pairs if parent != child})


def orphans(spans: Sequence[Span]) -> list[Span]:
    """Return the spans whose parent is missing."""
    known = {span.span_id for span in spans}
    return [span for span in spans if span.parent_span_id and span.parent_span_id not in known]


def waterfall(spans: Sequence[Span], width: int) -> list[Text]:
    """Return one line of `width` columns for each span: tree of service and name, offset, duration,
    and a bar on the time axis.

    Offset and duration are in ms, the offset from the start of the first span. An orphan is drawn
    like a root.
    """
    if not spans:
        return []
    first = min(span.start_unix_nanos for span in spans)
    whole = max(max(span.end_unix_nanos for span in spans) - first, 1)
    label_width = max(16, (width - _NUMBERS_WIDTH) * 3 // 5)
    bar_width = max(_SHORTEST_BAR, width - _NUMBERS_WIDTH - label_width)
    styles = {
        name: _SERVICE_STYLES[place % len(_SERVICE_STYLES)] for place, name in enumerate(services(spans))
    }
    lines = []
    for depth, span in span_tree(spans):
        style = "red" if span.status == "error" else styles[span.service]
        label = Text("  " * depth).append(span.service, style=style).append(f" {span.name}")
        label.truncate(label_width - 1, overflow="ellipsis")
        label.pad_right(label_width - label.cell_len)
        offset_ms = (span.start_unix_nanos - first) / _NANOS_PER_MS
        numbers = f"{offset_ms:>9.1f} {span.duration_ms:>9.1f} ms".ljust(_NUMBERS_WIDTH)
        start = min((span.start_unix_nanos - first) * bar_width // whole, bar_width - 1)
        end = -(
            -(span.end_unix_nanos - first) * bar_width // whole
        )  # rounded up, so that the shortest span is visible
        bar = (" " * start + "█" * max(1, end - start)).ljust(bar_width)[:bar_width]
        lines.append(label.append(numbers).append(bar, style=style))
    return lines
