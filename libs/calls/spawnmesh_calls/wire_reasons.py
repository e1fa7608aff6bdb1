"""Reasons as the contracts have them: numbers of an enum."""

from spawnmesh.errors.v1 import reason_pb2
from spawnmesh_core.reasons import Reason

_PREFIX = "REASON_"


def reason_number(reason: str) -> "reason_pb2.Reason.ValueType":
    """Return the number of a reason; that of UNSPECIFIED for an empty one."""
    return reason_pb2.Reason.Value(f"{_PREFIX}{reason}") if reason else reason_pb2.REASON_UNSPECIFIED


def reason_of(number: int) -> Reason | None:
    """Return the reason of a number: None for UNSPECIFIED, UNKNOWN for one of a newer service."""
    if number == reason_pb2.REASON_UNSPECIFIED:
        return None
    known = reason_pb2.Reason.DESCRIPTOR.values_by_number.get(number)
    return Reason.UNKNOWN if known is None else Reason(known.name.removeprefix(_PREFIX))
