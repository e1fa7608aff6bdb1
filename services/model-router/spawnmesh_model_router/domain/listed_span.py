"""The span of time that a list is about."""

from datetime import UTC, datetime, timedelta

from spawnmesh_core.errors import invalid


def listed_span(
    start: datetime | None,
    end: datetime | None,
    now: datetime,
    *,
    default: timedelta,
    kept: timedelta,
    kept_words: str,
) -> tuple[datetime, datetime]:
    """Return the start and the end of the span.

    Without an end it is now; without a start it is earlier than the end by the default. Raises
    MeshError INVALID_REQUEST for a span that ends before it starts, or is longer than what is kept.
    """
    end = now if end is None else end
    if start is None:
        start = earlier(end, default)
    if end < start:
        raise invalid("end_time", "is before start_time")
    if end - start > kept:
        raise invalid("start_time", f"is more than {kept_words} before end_time: no more are kept")
    return start, end


def earlier(moment: datetime, span: timedelta) -> datetime:
    """Return the moment earlier by the span, or the first moment of all."""
    first = datetime.min.replace(tzinfo=UTC)
    return moment - span if moment - first >= span else first
