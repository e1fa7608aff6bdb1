"""The tokens and the cost of a tenant's model calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import spend_pb2
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.clock import utc_now

from spawnmesh_client.pages import pages_of
from spawnmesh_client.times import stamp_of
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import Word, number_of, view_of

MAX_DAYS = 90
"""The days that the mesh keeps, the current one included."""
_PAGE = 1000
_DIMENSION = spend_pb2.SpendDimension.DESCRIPTOR


class SpendDimension(Word):
    """A dimension by which rows of the spending are grouped."""

    UNKNOWN = auto()
    DAY = auto()
    AGENT = auto()
    MODEL = auto()


@dataclass(frozen=True, slots=True)
class SpendRow:
    """The usage and the cost of calls of a day, an agent and a model, or sums over some of these.

    `day_time` is midnight UTC. An empty `agent_id` is that of calls without a run, and `*` that of
    all further agents of a day with very many; `agent_text` has words for them.
    """

    day_time: datetime | None
    agent_id: str
    model: str
    call_count: int
    input_token_count: int
    output_token_count: int
    cache_read_token_count: int
    cache_write_token_count: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class DayBudget:
    """The limit of the current day, and what counts against it, in millionths of the currency."""

    limit_micros: int
    spent_micros: int
    reserved_micros: int
    renew_time: datetime


@dataclass(frozen=True, slots=True)
class Spending:
    """The rows of a span of days, and the budget of the current day; None without a limit."""

    rows: tuple[SpendRow, ...]
    budget: DayBudget | None
    currency: str


async def list_spend(peer: TokenPeer, request: pb.ListSpendRequest) -> pb.ListSpendResponse:
    """Return the rows of all pages, and the budget as the last page has it, as one response."""
    wanted = pb.ListSpendRequest()
    wanted.CopyFrom(request)
    wanted.page_size = _PAGE
    rows: list[spend_pb2.SpendRow] = []
    last = pb.ListSpendResponse()
    async for page in pages_of(peer, ModelRouterServiceStub(peer.channel).ListSpend, wanted):
        rows += page.rows
        last = page
    has_budget = last.HasField("budget")
    return pb.ListSpendResponse(rows=rows, budget=last.budget if has_budget else None, currency=last.currency)


def spend_request(
    start_time: datetime | timedelta | None, end_time: datetime | timedelta | None, group_by: Sequence[str]
) -> pb.ListSpendRequest:
    """Return the request. Raises ValueError for a time without a zone, and for an unknown
    dimension.
    """
    return pb.ListSpendRequest(
        start_time=None if start_time is None else stamp_of(start_time),
        end_time=None if end_time is None else stamp_of(end_time),
        group_by=[number_of(one, _DIMENSION) for one in group_by],  # type: ignore[misc]
    )


def spending_of(response: pb.ListSpendResponse) -> Spending:
    """Return the view of a response."""
    return view_of(Spending, response)


def first_day(days: int) -> datetime:
    """Return the midnight (UTC) that begins the last so many days, the current one included."""
    today = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=days - 1)


def agent_text(agent_id: str) -> str:
    """Return the name of the agent of a row, or the words for what is no agent."""
    return {"": "direct calls", "*": "further agents"}.get(agent_id, agent_id)
