"""Times as programs give them, in the messages of the contracts."""

from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.clock import utc_now


def seconds_of(time: timedelta | float) -> float:
    """Return the seconds of a time that is a timedelta or in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else time


def stamp_of(time: datetime | timedelta) -> Timestamp:
    """Return the time, or that time ago. Raises ValueError for a time without a zone."""
    at = utc_now() - time if isinstance(time, timedelta) else time
    if at.tzinfo is None:
        raise ValueError("a time needs its zone, as datetime.now(UTC) has it")
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp
