"""The age of a time, and the time until one, for people."""

from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.clock import utc_now


def time_of(timestamp: Timestamp) -> datetime:
    """Return the time in UTC."""
    return timestamp.ToDatetime(tzinfo=utc_now().tzinfo)


def age(timestamp: Timestamp) -> str:
    """Return the age in the largest fitting unit: `12 s`, `3 min`, `5 h`, `4 d`."""
    return _span(utc_now() - time_of(timestamp))


def time_left(timestamp: Timestamp) -> str:
    """Return the time until then, as `age`; `0 s` for a time that is over."""
    return _span(time_of(timestamp) - utc_now())


def _span(time: timedelta) -> str:
    minutes, seconds = divmod(max(0, int(time.total_seconds())), 60)
    if minutes < 1:
        return f"{seconds} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // (24 * 60)} d"
