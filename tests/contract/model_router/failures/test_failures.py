"""Failed calls of providers are listed by hour, model and reason."""

from datetime import UTC

import psycopg
import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support import tenancy
from tests.support.model_router.failures import (
    BY_HOUR,
    BY_MODEL,
    BY_REASON,
    failed,
    list_failures,
    put_failures,
    stored_failures,
    this_hour,
)
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import (
    BROKEN,
    RATE_LIMITED,
    Stall,
    chat,
    chunk,
    cut_after,
    openai_error,
    sse,
)
from tests.support.model_router.spending import as_agent, spent
from tests.support.waiting import HOUR, eventually, time_left_in

pytestmark = pytest.mark.usefixtures("quick_spend")

BAD_REQUEST = openai_error(
    400, "Your request was flagged by our usage policy.", "invalid_request_error", None
)


@pytest.fixture
async def router(world: World) -> Router:
    """A router within an hour that goes on for a while."""
    await time_left_in(HOUR)
    world.provider.on("one", RATE_LIMITED)
    world.provider.on("two", sse(*chat("two")))
    return await world.router(tries_before_failover=1, tries_at_last_candidate=1)


async def test_ListFailures__call_that_another_model_answers_is_a_failover(
    world: World, router: Router
) -> None:
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "two"
    assert await failed(router, 1) == [("one", "RATE_LIMIT", 1, 1, 0)]
    # In its cooldown the model is not called, and does not fail.
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "two"
    await spent(router, 2)
    response = await list_failures(router)
    (row,) = response.rows
    assert row.hour_time.ToDatetime(UTC) == this_hour()
    assert (row.model, row.failure_count) == (world.ref("one"), 1)


async def test_ListFailures__failure_that_ends_the_call_is_no_failover(world: World, router: Router) -> None:
    world.provider.on("two", BROKEN)
    refused = (await router.generate(world.ref("one"), world.ref("two"))).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert await failed(router, 2) == [("one", "RATE_LIMIT", 1, 1, 0), ("two", "SERVER_ERROR", 1, 0, 1)]


async def test_ListFailures__answer_that_breaks_off_is_a_failure(world: World, router: Router) -> None:
    world.provider.on("two", cut_after(chunk({"content": "x" * 40})))
    refused = (await router.generate(world.ref("two"), world.ref("one"))).refused
    assert refused.reason is Reason.STREAM_BROKEN
    ((model, _, *counts),) = await failed(router, 1)
    assert (model, counts) == ("two", [1, 0, 1])


async def test_ListFailures__refused_request_is_a_failure_that_ends_the_call(
    world: World, router: Router
) -> None:
    world.provider.on("one", BAD_REQUEST)
    answered = await router.generate(world.ref("one"), world.ref("two"))
    ((model, reason, *counts),) = await failed(router, 1)
    assert (model, reason) == ("one", "NO_FAILOVER")
    assert answered.refused.reason is Reason.MODEL_REFUSED
    assert counts == [1, 0, 1]


async def test_ListFailures__repeated_call_is_neither_a_failover_nor_an_end(world: World) -> None:
    await time_left_in(HOUR)
    router = await world.router(tries_before_failover=3, tries_at_last_candidate=3)
    world.provider.on("one", BROKEN, BROKEN, sse(*chat("one")))
    assert (await router.generate(world.ref("one"), strict=True)).text == "one"
    assert await failed(router, 2) == [("one", "SERVER_ERROR", 2, 0, 0)]


async def test_ListFailures__failure_counts_once_if_the_caller_leaves_the_next_call(world: World) -> None:
    await time_left_in(HOUR)
    config = world.config(fallbacks=[world.ref("two")])
    router = await world.router(config, tries_before_failover=1)
    world.provider.on("one", RATE_LIMITED)
    stall = Stall((chunk({"role": "assistant", "content": "x" * 40}),))
    world.provider.on("two", stall)
    await router.hang_up_after(4, world.ref("one"), stall.reached.wait)
    assert await failed(router, 1) == [("one", "RATE_LIMIT", 1, 1, 0)]


async def test_ListFailures__groups_are_sums(world: World, router: Router) -> None:
    await put_failures(world, router.tenant, 2, ("p/one", "TIMEOUT"), ("p/two", "TIMEOUT"), failure_count=3)
    await put_failures(world, router.tenant, 5, ("p/one", "BILLING"), ("p/one", "TIMEOUT"))
    assert await failed(router, 8, group_by=[BY_REASON]) == [
        ("", "BILLING", 1, 0, 1),
        ("", "TIMEOUT", 7, 0, 7),
    ]
    by_model = [("one", "UNSPECIFIED", 5, 0, 5), ("two", "UNSPECIFIED", 3, 0, 3)]
    assert await failed(router, 8, group_by=[BY_MODEL]) == by_model
    assert await failed(router, 8, group_by=[BY_HOUR]) == [
        ("", "UNSPECIFIED", 2, 0, 2),
        ("", "UNSPECIFIED", 6, 0, 6),
    ]
    both = [("one", "BILLING", 1, 0, 1), ("one", "TIMEOUT", 4, 0, 4), ("two", "TIMEOUT", 3, 0, 3)]
    assert await failed(router, 8, group_by=[BY_REASON, BY_MODEL]) == both


async def test_ListFailures__tenant_sees_its_own_failures_alone(world: World, router: Router) -> None:
    other = await router.for_tenant(f"{router.tenant}-x")
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "two"
    await failed(router, 1)
    assert not (await list_failures(other)).rows
    world.provider.on("two", BROKEN)
    assert (await other.generate(world.ref("two"), strict=True)).refusal
    assert await failed(other, 1) == [("two", "SERVER_ERROR", 1, 0, 1)]
    assert await failed(router, 1) == [("one", "RATE_LIMIT", 1, 1, 0)]


async def test_ListFailures__calls_of_two_replicas_are_one_sum(world: World, router: Router) -> None:
    world.provider.on("one", BAD_REQUEST)
    second = await world.router(tenant=router.tenant, is_prepared=False)
    for replica in (router, second):
        assert (await replica.generate(world.ref("one"), strict=True)).refusal
    assert await failed(router, 2) == await failed(second, 2) == [("one", "NO_FAILOVER", 2, 0, 2)]


async def test_Generate__hours_that_are_over_for_long_are_deleted(world: World, router: Router) -> None:
    for ago in (0, 167, 168, 400):
        await put_failures(world, router.tenant, ago, ("p/one", "TIMEOUT"))
    assert (await router.generate(world.ref("one"), strict=True)).refusal

    async def kept() -> bool:
        rows = await stored_failures(world, router.tenant)
        return [(this_hour() - hour).total_seconds() / 3600 for hour, *_ in rows] == [167, 0, 0]

    await eventually(kept)


async def test_PurgeTenant__deletes_the_failures(world: World, router: Router) -> None:
    other = await router.for_tenant(f"{router.tenant}-x")
    world.provider.on("one", BAD_REQUEST)
    for caller in (router, other):
        assert (await caller.generate(world.ref("one"), strict=True)).refusal
        await failed(caller, 1)
    # The failure of this moment is not stored yet when the tenant is purged.
    assert (await router.generate(world.ref("one"), strict=True)).refusal
    with use_token(TokenMinter("session", router.keys / "session.pem").service_token(router.tenant)):
        assert (await tenancy.purge(router.peer, 0)).done
    assert (await other.generate(world.ref("one"), strict=True)).refusal
    await failed(other, 2)
    assert await stored_failures(world, router.tenant) == []
    with pytest.raises(MeshError) as refusal:
        await list_failures(router)
    assert refusal.value.reason is Reason.UNKNOWN_TENANT


async def test_ListFailures__readers_may_and_runs_may_not(router: Router) -> None:
    minter = TokenMinter("client", router.keys / "client.pem")
    reader = minter.client_token(router.tenant, "ann", 600, role=ClientRole.READER)
    assert not (await router.call("ListFailures", pb.ListFailuresRequest(), token=reader)).rows
    for token in (as_agent(router, "ann").token, router.operator):
        with pytest.raises(MeshError) as refusal:
            await router.call("ListFailures", pb.ListFailuresRequest(), token=token)
        assert refusal.value.reason is Reason.CALLER_NOT_ALLOWED


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("'t', to_timestamp(3600), 'p/one', 'TIMEOUT', -1, 0, 0", id="negative-count"),
        pytest.param("'t', to_timestamp(3600), 'p/one', 'TIMEOUT', 2, 2, 1", id="more-than-failed"),
        pytest.param("'t', to_timestamp(3600.5), 'p/one', 'TIMEOUT', 1, 0, 0", id="no-hour"),
        pytest.param("'t', to_timestamp(3600), 'one', 'TIMEOUT', 1, 0, 0", id="model-without-provider"),
        pytest.param("'other', to_timestamp(3600), 'p/one', 'TIMEOUT', 1, 0, 0", id="other-tenant"),
    ],
)
async def test_row_of_failures_that_makes_no_sense_is_refused(world: World, row: str) -> None:
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("set local spawnmesh.tenant = 't'")
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.InsufficientPrivilege)):
            await connection.execute(f"insert into failure_hours values ({row})".encode())
