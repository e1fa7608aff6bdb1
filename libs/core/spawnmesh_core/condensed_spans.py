"""Shorten a trace so that it can be read."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from spawnmesh_core.spans import Span

_SHORTEST_SHARE = 0.005
_TELLING = ("chat ", "invoke_agent ", "execute_tool ")
_RPC = re.compile(r"[\w.]+/(\w+)")


def condensed(spans: Sequence[Span], also: Collection[str] = ()) -> list[Span]:
    """Return the spans that tell the story: each RPC once under its method's name, without spans
    that took no time.

    A span is left out only if none of its descendants is shown. Every service of the trace is still
    in it, and so is each span whose id is in `also`.
    """
    merged = _one_per_rpc(spans)
    by_id = {span.span_id: span for span in merged}
    whole = max((span.end_unix_nanos for span in merged), default=0) - min(
        (span.start_unix_nanos for span in merged), default=0
    )
    longest = {span.service: span for span in sorted(merged, key=lambda span: span.duration_ms)}
    kept: dict[str, Span] = {}
    for span in merged:
        long_enough = span.end_unix_nanos - span.start_unix_nanos >= whole * _SHORTEST_SHARE
        is_telling = span.name.startswith(_TELLING) or span.span_id in also
        if long_enough or is_telling or longest[span.service] is span:
            above: Span | None = span
            while above is not None and above.span_id not in kept:
                kept[above.span_id] = above
                above = by_id.get(above.parent_span_id)
    return [span for span in merged if span.span_id in kept]


def _one_per_rpc(spans: Sequence[Span]) -> list[Span]:
    """Replace a client span whose only child is the server span of the same call by that child."""
    by_id = {span.span_id: span for span in spans}
    children = Counter(span.parent_span_id for span in spans)
    merged = []
    gone = set()
    for span in spans:
        caller = by_id.get(span.parent_span_id)
        if caller and caller.kind == "client" and caller.name == span.name and children[caller.span_id] == 1:
            gone.add(caller.span_id)
            span = replace(span, parent_span_id=caller.parent_span_id)
        merged.append(span)
    return [replace(span, name=method_name(span.name)) for span in merged if span.span_id not in gone]


def method_name(name: str) -> str:
    """Return the method of an RPC's full name; any other name as it is."""
    found = _RPC.fullmatch(name)
    return name if found is None else found[1]
