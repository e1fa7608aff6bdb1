"""ListSchedules and ListScheduleFirings: pages, filters, and their bounds."""

from datetime import UTC
from typing import Any

import pytest
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as service_pb
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh
from tests.support.session.schedules import (
    DAY,
    MISSED,
    NONE,
    SPAWNED,
    Clockwork,
    assert_refused,
)


async def test_ListSchedules__pages_in_the_order_of_names(clockwork: Clockwork) -> None:
    names = [f"s-{number}" for number in (3, 1, 10, 2)] + ["0", "z"]
    for name in names:
        await clockwork.put("0 9 * * *", name=name)
    await clockwork.run("s-3")
    listed: list[pb.Schedule] = []
    request = service_pb.ListSchedulesRequest(page_size=4)
    page = await clockwork.call("ListSchedules", request)
    assert len(page.schedules) == 4
    listed += page.schedules
    request.page_token = page.next_page_token
    page = await clockwork.call("ListSchedules", request)
    assert page.next_page_token == ""
    listed += page.schedules
    assert [one.name for one in listed] == sorted(names)
    expected = [await clockwork.get(name) for name in sorted(names)]
    for one in expected:
        del one.upcoming_times[1:]  # A list has the next one alone.
    assert listed == expected
    assert [one.name for one in listed if one.HasField("last_firing")] == ["s-3"]


async def test_ListSchedules__a_page_that_was_full_is_the_last(clockwork: Clockwork) -> None:
    for name in ("a", "b"):
        await clockwork.put("0 9 * * *", name=name)
    page = await clockwork.call("ListSchedules", service_pb.ListSchedulesRequest(page_size=2))
    assert (len(page.schedules), page.next_page_token) == (2, "")


@pytest.mark.parametrize(
    "fields", [{"page_size": -1}, {"page_size": 1001}, {"page_token": "x"}, {"page_token": "x" * 513}]
)
async def test_ListSchedules__malformed(clockwork: Clockwork, fields: dict[str, Any]) -> None:
    error = await clockwork.refusal("ListSchedules", service_pb.ListSchedulesRequest(**fields))
    assert_refused(error, Reason.INVALID_REQUEST)


async def test_ListSchedules__a_token_of_another_tenant(clockwork: Clockwork) -> None:
    other = Clockwork(
        Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings), clockwork.postgres
    )
    await other.mesh.create_tenant()
    for name in ("a", "b"):
        await clockwork.put("0 9 * * *", name=name)
        await other.put("0 9 * * *", name=name)
    page = await other.call("ListSchedules", service_pb.ListSchedulesRequest(page_size=1))
    request = service_pb.ListSchedulesRequest(page_size=1, page_token=page.next_page_token)
    assert_refused(await clockwork.refusal("ListSchedules", request), Reason.INVALID_REQUEST)


async def test_ListScheduleFirings__filters_and_pages(clockwork: Clockwork) -> None:
    await clockwork.put_daily(catch_up=NONE)
    await clockwork.pass_time(7 * DAY)
    await clockwork.fire()
    for _ in range(2):
        await clockwork.run()
    everything = await clockwork.history()
    assert [one.outcome for one in everything] == [SPAWNED] * 2 + [MISSED] * 7
    times = [one.due_time.ToDatetime(tzinfo=UTC) for one in everything]
    assert times == sorted(times, reverse=True)
    assert await clockwork.history(outcome=MISSED) == everything[2:]
    assert await clockwork.history(outcome=SPAWNED) == everything[:2]
    assert await clockwork.history(outcome=pb.FIRING_OUTCOME_FAILED) == []
    assert await clockwork.history(start_time=times[5]) == everything[:6]
    assert await clockwork.history(end_time=times[5]) == everything[6:]
    assert await clockwork.history(start_time=times[6], end_time=times[4]) == everything[5:7]
    assert await clockwork.history(start_time=times[4], end_time=times[4]) == []
    for conditions in ({}, {"outcome": MISSED}, {"outcome": MISSED, "end_time": times[3]}):
        pages = await pages_of(clockwork, page_size=2, **conditions)
        assert [one for page in pages for one in page] == await clockwork.history(**conditions)
        assert all(len(page) == 2 for page in pages[:-1])


async def pages_of(clockwork: Clockwork, **fields: Any) -> list[list[pb.ScheduleFiring]]:
    request = service_pb.ListScheduleFiringsRequest(name="nightly", **fields)
    pages: list[list[pb.ScheduleFiring]] = []
    while True:
        page = await clockwork.call("ListScheduleFirings", request)
        pages.append(list(page.firings))
        if not page.next_page_token:
            return pages
        request.page_token = page.next_page_token


async def test_ListScheduleFirings__firings_of_the_same_due_time_are_on_pages_once(
    clockwork: Clockwork,
) -> None:
    await clockwork.put("0 9 * * *")
    for _ in range(5):
        await clockwork.run()
    await clockwork.execute(
        "update session.schedule_firings set due_time = now() where tenant_id = %(tenant)s"
    )
    pages = await pages_of(clockwork, page_size=1)
    ids = [one.firing_id for page in pages for one in page]
    assert ids == sorted(set(ids), reverse=True)
    assert len(ids) == 5


async def test_ListScheduleFirings__looks_at_a_bounded_number(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    [stored] = await clockwork.stored("schedules")
    await clockwork.execute(
        """
        insert into session.schedule_firings (tenant_id, schedule_id, firing_id, due_time, fire_time, outcome)
        select %(tenant)s, %(schedule)s, 'fir_' || n, now() - n * interval '1 minute', now(),
            case when n = 10500 then 'SPAWNED' when n %% 2 = 0 then 'DUE' else 'MISSED' end
        from generate_series(1, 10500) n
        """,
        schedule=stored["schedule_id"],
    )
    pages = await pages_of(clockwork, outcome=SPAWNED)
    assert [len(page) for page in pages] == [0, 0, 1]
    pages = await pages_of(clockwork, page_size=1000)
    found = [one for page in pages for one in page]
    assert len(found) == 5251
    assert {one.outcome for one in found} == {MISSED, SPAWNED}


async def test_ListScheduleFirings__what_is_due_is_not_shown(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts() as attempt:
        await attempt()
    stored = {row["outcome"] for row in await clockwork.stored("schedule_firings")}
    assert stored == {"SPAWNED", "DUE"}
    [shown] = await clockwork.history()
    assert shown.outcome == SPAWNED
    assert (await clockwork.get()).last_firing == shown


@pytest.mark.parametrize(
    "fields",
    [
        {"page_size": -1},
        {"page_size": 1001},
        {"page_token": "x"},
        {"outcome": 17},
        {"start_time": {"seconds": 10**15}},
        {"start_time": {"seconds": -(10**15)}},
        {"end_time": {"nanos": -1}},
    ],
)
async def test_ListScheduleFirings__malformed(clockwork: Clockwork, fields: dict[str, Any]) -> None:
    await clockwork.put("0 9 * * *")
    request = service_pb.ListScheduleFiringsRequest(name="nightly", **fields)
    error = await clockwork.refusal("ListScheduleFirings", request)
    assert_refused(error, Reason.INVALID_REQUEST, next(iter(fields)))


async def test_ListScheduleFirings__a_token_of_another_list(clockwork: Clockwork) -> None:
    for name in ("nightly", "another"):
        await clockwork.put("0 9 * * *", name=name)
        for _ in range(2):
            await clockwork.run(name)
    request = service_pb.ListScheduleFiringsRequest(name="another", page_size=1)
    token = (await clockwork.call("ListScheduleFirings", request)).next_page_token
    for fields in ({"name": "nightly"}, {"name": "another", "outcome": SPAWNED}):
        other = service_pb.ListScheduleFiringsRequest(page_token=token, **fields)
        assert_refused(await clockwork.refusal("ListScheduleFirings", other), Reason.INVALID_REQUEST)


async def test_ListScheduleFirings__the_oldest_and_the_newest_times(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    fired = await clockwork.run()
    first, last = {"seconds": -62135596800}, {"seconds": 253402300799, "nanos": 999999999}
    assert await clockwork.history(start_time=first, end_time=last) == [fired]
    assert await clockwork.history(start_time=last) == []
    assert await clockwork.history(end_time=first) == []
