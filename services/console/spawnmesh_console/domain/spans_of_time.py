"""Times and spans of time in words."""

from datetime import datetime, timedelta

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def age(then: datetime, now: datetime) -> str:
    """Return the distance to a time in the past or the future, such as `3 min ago` or `in 2 h`."""
    seconds = (now - then).total_seconds()
    far = abs(seconds)
    if far < 1.5:
        return "now"
    if far < _MINUTE:
        words = f"{int(far + 0.5)} s"  # A half is rounded up, as in the browser.
    elif far < _HOUR:
        words = f"{far // _MINUTE:.0f} min"
    elif far < 2 * _DAY:
        words = f"{far // _HOUR:.0f} h"
    else:
        words = f"{far // _DAY:.0f} days"
    return f"{words} ago" if seconds > 0 else f"in {words}"


def span(seconds: float) -> str:
    """Return a span of time, such as `84 ms`, `1.2 s`, `3 min 04 s` or `2 h 05 min`."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"


def whole_span(time: timedelta) -> str:
    """Return a span such as `1 h` or `3 days`, without parts that are zero."""
    seconds = int(time.total_seconds())
    for unit, word in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds % unit == 0 and seconds >= unit * (2 if word == "days" else 1):
            return f"{seconds // unit} {word}"
    return span(seconds)


def fine_span(nanos: int) -> str:
    """Return a span of time as `span` does, with tenths of a millisecond below 10 ms."""
    milliseconds = max(nanos, 0) / 1_000_000
    if 0 < milliseconds < 0.05:
        return "<0.1 ms"
    return f"{milliseconds:.1f} ms" if 0 < milliseconds < 9.95 else span(milliseconds / 1000)
