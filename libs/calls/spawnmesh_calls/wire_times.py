"""Times and durations as messages have them."""

from datetime import UTC, datetime, timedelta
from typing import overload

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.errors import invalid


@overload
def timestamp_of(time: datetime) -> Timestamp: ...
@overload
def timestamp_of(time: None) -> None: ...
def timestamp_of(time: datetime | None) -> Timestamp | None:
    """Return the message of a time; None for none."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def duration_of(span: timedelta) -> Duration:
    """Return the message of a span of time."""
    message = Duration()
    message.FromTimedelta(span)
    return message


def time_of(message: Timestamp, field: str) -> datetime:
    """Return the time of a message. Raise INVALID_REQUEST with the field if it is malformed."""
    try:
        return message.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is not a valid time") from None
