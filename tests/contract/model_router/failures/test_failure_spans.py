"""A list of failed calls has the whole hours of a span, and no others."""

from datetime import UTC, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import page_token
from spawnmesh_core.reasons import Reason

from tests.support.model_router.failures import BY_HOUR, BY_REASON, list_failures, put_failures, this_hour
from tests.support.model_router.fixtures import Router, World
from tests.support.page_keys import page_key_from
from tests.support.waiting import HOUR, time_left_in


@pytest.fixture
async def router(world: World) -> Router:
    await time_left_in(HOUR)
    return await world.router()


def stamp(hours_ago: float) -> Timestamp:
    time = Timestamp()
    time.FromDatetime(this_hour() - timedelta(hours=hours_ago))
    return time


async def hours_ago(router: Router, **span: Timestamp) -> list[int]:
    """Return how many hours ago each row of the span is, oldest first."""
    fields: dict[str, Any] = {**span}
    rows = (await list_failures(router, group_by=[BY_HOUR], **fields)).rows
    return [round((this_hour() - row.hour_time.ToDatetime(UTC)) / timedelta(hours=1)) for row in rows]


async def test_ListFailures__hours_of_the_span(world: World, router: Router) -> None:
    for ago in (0, 1, 23, 24, 167, 168, 200):
        await put_failures(world, router.tenant, ago, ("p/one", "TIMEOUT"))
    assert await hours_ago(router) == [23, 1, 0]
    assert await hours_ago(router, start_time=stamp(23)) == [23, 1, 0]
    assert await hours_ago(router, start_time=stamp(22.9)) == [1, 0]
    assert await hours_ago(router, start_time=stamp(24), end_time=stamp(0)) == [24, 23, 1]
    assert await hours_ago(router, start_time=stamp(1), end_time=stamp(1)) == []
    # Hours older than 168 hours are not shown, even before they are deleted.
    assert await hours_ago(router, start_time=stamp(167)) == [167, 24, 23, 1, 0]
    assert await hours_ago(router, start_time=stamp(300), end_time=stamp(160)) == [167]
    assert await hours_ago(router, end_time=stamp(300)) == []


async def test_ListFailures__page_goes_on_where_it_ended_after_the_hour_turned(
    world: World, router: Router
) -> None:
    await put_failures(world, router.tenant, 1, ("p/one", "BILLING"), ("p/one", "TIMEOUT"))
    request = pb.ListFailuresRequest(group_by=[BY_REASON], page_size=1)
    # The token of a page that an hour ago began with the span.
    position = [this_hour() - timedelta(hours=24), "", "BILLING"]
    with page_key_from(router.keys, "model-router"):
        request.page_token = page_token(position, request, router.tenant)
    (row,) = (await router.call("ListFailures", request)).rows
    assert row.reason == generation_pb2.FAILOVER_REASON_TIMEOUT


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        pytest.param(1, 2, "end_time", id="turned-round"),
        pytest.param(169, 0, "start_time", id="too-long"),
        pytest.param(169, None, "start_time", id="too-long-until-now"),
        pytest.param(-2, None, "end_time", id="begins-later-than-now"),
    ],
)
async def test_ListFailures__senseless_span_is_refused(
    router: Router, start: int, end: int | None, field: str
) -> None:
    span = {"start_time": stamp(start)} | ({} if end is None else {"end_time": stamp(end)})
    with pytest.raises(MeshError) as refusal:
        await hours_ago(router, **span)
    assert refusal.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in refusal.value.violations] == [field]


@pytest.mark.parametrize("seconds", [-(10**15), 10**15, -62_135_596_800, 253_402_300_799])
@pytest.mark.parametrize("field", ["start_time", "end_time"])
async def test_ListFailures__any_time_is_a_span_or_refused(router: Router, field: str, seconds: int) -> None:
    span: dict[str, Any] = {field: Timestamp(seconds=seconds)}

    async def refusal() -> Reason | None:
        try:
            await list_failures(router, **span)
        except MeshError as error:
            return error.reason
        return None

    assert await refusal() in (None, Reason.INVALID_REQUEST)


@pytest.mark.parametrize("group_by", [[0], [4], [1, 1], [1, 2, 3, 1]])
async def test_ListFailures__unknown_and_repeated_dimensions_are_refused(
    router: Router, group_by: list[int]
) -> None:
    with pytest.raises(MeshError) as refusal:
        await list_failures(router, group_by=group_by)
    assert refusal.value.reason is Reason.INVALID_REQUEST
