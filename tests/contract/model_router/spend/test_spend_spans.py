"""Spans of days: the kept ones are listed, and spans that make no sense are refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import page_token
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.spending import BY_AGENT, BY_DAY, list_spend, put_spend, today
from tests.support.page_keys import page_key_from
from tests.support.waiting import DAY, time_left_in


@pytest.fixture
async def router(world: World) -> Router:
    await time_left_in(DAY)
    return await world.router()


def midnight(days_ago: int) -> datetime:
    day = today() - timedelta(days=days_ago)
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


async def days_ago(router: Router, **span: datetime) -> list[int]:
    """Return how many days ago each row of the span is, oldest first."""
    fields: dict[str, Any] = {name: _timestamp(moment) for name, moment in span.items()}
    rows = (await list_spend(router, group_by=[BY_DAY], **fields)).rows
    return [(today() - row.day_time.ToDatetime(UTC).date()).days for row in rows]


def _timestamp(moment: datetime) -> Timestamp:
    time = Timestamp()
    time.FromDatetime(moment)
    return time


async def test_ListSpend__days_of_the_span(world: World, router: Router) -> None:
    for ago in (0, 1, 6, 29, 30, 89, 90, 91):
        await put_spend(world, router.tenant, ago, ("ann", "p/one"))
    assert await days_ago(router) == [29, 6, 1, 0]
    assert await days_ago(router, start_time=midnight(6)) == [6, 1, 0]
    assert await days_ago(router, start_time=midnight(6) + timedelta(microseconds=1)) == [1, 0]
    assert await days_ago(router, start_time=midnight(6), end_time=midnight(0)) == [6, 1]
    assert await days_ago(router, start_time=midnight(6), end_time=midnight(6)) == []
    assert await days_ago(router, end_time=midnight(1)) == [30, 29, 6]
    # Days older than 90 days are not shown, even before they are deleted.
    assert await days_ago(router, start_time=midnight(89)) == [89, 30, 29, 6, 1, 0]
    assert await days_ago(router, start_time=midnight(150), end_time=midnight(85)) == [89]
    assert await days_ago(router, end_time=midnight(200)) == []
    assert await days_ago(router, start_time=midnight(-1), end_time=midnight(-80)) == []


async def test_ListSpend__page_goes_on_where_it_ended_after_midnight(world: World, router: Router) -> None:
    await put_spend(world, router.tenant, 1, ("ann", "p/one"), ("ben", "p/one"))
    request = pb.ListSpendRequest(group_by=[BY_AGENT], page_size=1)
    # The token of a page that a day ago began with the span.
    position = [(today() - timedelta(days=30)).isoformat(), "ann", ""]
    with page_key_from(router.keys, "model-router"):
        request.page_token = page_token(position, request, router.tenant)
    (row,) = (await router.call("ListSpend", request)).rows
    assert row.agent_id == "ben"


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        pytest.param(1, 2, "end_time", id="turned-round"),
        pytest.param(91, 0, "start_time", id="too-long"),
        pytest.param(91, None, "start_time", id="too-long-until-now"),
        pytest.param(-1, None, "end_time", id="begins-later-than-now"),
    ],
)
async def test_ListSpend__senseless_span_is_refused(
    router: Router, start: int, end: int | None, field: str
) -> None:
    span = {"start_time": midnight(start)} | ({} if end is None else {"end_time": midnight(end)})
    with pytest.raises(MeshError) as refusal:
        await days_ago(router, **span)
    assert refusal.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in refusal.value.violations] == [field]


@pytest.mark.parametrize("seconds", [-(10**15), 10**15, -62_135_596_800, 253_402_300_799])
@pytest.mark.parametrize("field", ["start_time", "end_time"])
async def test_ListSpend__any_time_is_a_span_or_refused(router: Router, field: str, seconds: int) -> None:
    span: dict[str, Any] = {field: Timestamp(seconds=seconds)}

    async def refusal() -> Reason | None:
        try:
            await list_spend(router, **span)
        except MeshError as error:
            return error.reason
        return None

    assert await refusal() in (None, Reason.INVALID_REQUEST)


@pytest.mark.parametrize("group_by", [[0], [4], [1, 1], [1, 2, 3, 1]])
async def test_ListSpend__unknown_and_repeated_dimensions_are_refused(
    router: Router, group_by: list[int]
) -> None:
    with pytest.raises(MeshError) as refusal:
        await list_spend(router, group_by=group_by)
    assert refusal.value.reason is Reason.INVALID_REQUEST
