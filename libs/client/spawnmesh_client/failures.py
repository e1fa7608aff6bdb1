"""The failed calls of providers, by hour, model and reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto

from spawnmesh.model_router.v1 import failures_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.clock import utc_now

from spawnmesh_client.pages import paged
from spawnmesh_client.times import stamp_of
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import Word, number_of

MAX_HOURS = 168
"""The hours that the mesh keeps, the current one included."""
_PAGE = 1000
_DIMENSION = failures_pb2.FailureDimension.DESCRIPTOR


class FailureDimension(Word):
    """A dimension by which rows of failed calls are grouped."""

    UNKNOWN = auto()
    HOUR = auto()
    MODEL = auto()
    REASON = auto()


class FailureReason(Word):
    """The reason of a failed call."""

    UNKNOWN = auto()
    RATE_LIMIT = auto()
    OVERLOADED = auto()
    BILLING = auto()
    AUTH = auto()
    AUTH_PERMANENT = auto()
    TIMEOUT = auto()
    SERVER_ERROR = auto()
    TLS_CERTIFICATE = auto()
    CONTEXT_OVERFLOW = auto()
    FORMAT = auto()
    MODEL_NOT_FOUND = auto()
    SESSION_EXPIRED = auto()
    EMPTY_RESPONSE = auto()
    NO_ERROR_DETAILS = auto()
    UNCLASSIFIED = auto()
    NO_FAILOVER = auto()


@dataclass(frozen=True, slots=True)
class FailureRow:
    """The failed calls of an hour, a model and a reason, or sums over some of these.

    `hour_time` is the beginning of the hour, UTC. After `failover_count` of them another model was
    called, and after `end_count` none; after the others the same model was called again.
    """

    hour_time: datetime | None
    model: str
    reason: FailureReason | None
    failure_count: int
    failover_count: int
    end_count: int


async def list_failures(peer: TokenPeer, request: pb.ListFailuresRequest) -> list[failures_pb2.FailureRow]:
    """Return the rows of all pages."""
    wanted = pb.ListFailuresRequest()
    wanted.CopyFrom(request)
    wanted.page_size = _PAGE
    stub = ModelRouterServiceStub(peer.channel)
    return [row async for row in paged(peer, stub.ListFailures, wanted, "rows")]


def failures_request(
    start_time: datetime | timedelta | None, end_time: datetime | timedelta | None, group_by: Sequence[str]
) -> pb.ListFailuresRequest:
    """Return the request. Raises ValueError for a time without a zone, and for an unknown
    dimension.
    """
    return pb.ListFailuresRequest(
        start_time=None if start_time is None else stamp_of(start_time),
        end_time=None if end_time is None else stamp_of(end_time),
        group_by=[number_of(one, _DIMENSION) for one in group_by],  # type: ignore[misc]
    )


def first_hour(hours: int) -> datetime:
    """Return the beginning of the last so many hours (UTC), the current one included."""
    return utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours - 1)
