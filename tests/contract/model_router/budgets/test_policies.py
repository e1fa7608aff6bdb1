"""The policy and the limits of a tenant do not affect another tenant."""

import asyncio
import secrets

import psycopg
import pytest
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import World, image_block, user
from tests.support.model_router.provider import BROKEN, chat, sse
from tests.support.waiting import MINUTE, eventually, time_left_in

LOOK = [user("look", image_block())]


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("blind", sse(*chat("blind")))
    return world


@pytest.mark.parametrize(
    ("policy", "answered_by", "images"),
    [
        (routing_pb2.BLIND_MODEL_POLICY_ROUTE_AROUND, "one", generation_pb2.IMAGE_OUTCOME_SENT),
        (routing_pb2.BLIND_MODEL_POLICY_STRIP, "blind", generation_pb2.IMAGE_OUTCOME_STRIPPED),
    ],
)
async def test_PrepareTenant__decides_about_images_at_a_model_that_cannot_see(
    world: World,
    policy: routing_pb2.BlindModelPolicy.ValueType,
    answered_by: str,
    images: generation_pb2.ImageOutcome.ValueType,
) -> None:
    router = await world.router()
    await router.prepare(1, blind_model_policy=policy)
    answered = await router.generate(world.ref("blind"), world.ref("one"), messages=LOOK)
    assert answered.text == answered_by
    assert answered.completion.images == images
    assert ("image_url" in str(world.provider.bodies)) is (images == generation_pb2.IMAGE_OUTCOME_SENT)


async def test_PrepareTenant__may_refuse_and_holds_for_this_tenant_alone(world: World) -> None:
    router, other = await world.router(), await world.router()
    await router.prepare(1, blind_model_policy=routing_pb2.BLIND_MODEL_POLICY_REFUSE)
    refused = (await router.generate(world.ref("blind"), messages=LOOK)).refused
    assert refused.reason is Reason.MODEL_REFUSED
    assert (await other.generate(world.ref("blind"), messages=LOOK)).text == "blind"


async def test_PrepareTenant__the_newest_version_holds_at_every_replica(world: World) -> None:
    first = await world.router()
    second = await world.router(tenant=first.tenant)
    assert (await second.generate(world.ref("blind"), messages=LOOK)).text == "blind"
    assert await first.prepare(5, blind_model_policy=routing_pb2.BLIND_MODEL_POLICY_REFUSE) == 5
    assert await first.prepare(4, blind_model_policy=routing_pb2.BLIND_MODEL_POLICY_STRIP) == 5

    async def refuses() -> bool:
        return (await second.generate(world.ref("blind"), messages=LOOK)).refusal is not None

    await eventually(refuses)  # The notification makes it read; otherwise it reads every five minutes.
    assert await second.prepare(6) == 6
    assert (await second.generate(world.ref("blind"), messages=LOOK)).text == "blind"


async def test_Generate__a_tenant_may_choose_fewer_tries(world: World) -> None:
    world.provider.on("one", BROKEN)
    router = await world.router(tries_at_last_candidate=3)
    await router.prepare(1, max_try_count=1)
    assert (
        await router.generate(world.ref("one"), strict=True)
    ).refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert world.provider.asked("one") == 1


async def test_Generate__requests_of_a_minute_are_counted_over_replicas(world: World) -> None:
    first = await world.router()
    second = await world.router(tenant=first.tenant)
    await first.prepare(1, max_requests_per_minute=4)
    await second.prepare(1, max_requests_per_minute=4)
    await time_left_in(MINUTE)
    answers = await asyncio.gather(*(router.generate(world.ref("one")) for router in (first, second) * 4))
    refusals = [answer.refusal for answer in answers if answer.refusal is not None]
    assert len(refusals) == 4
    for refusal in refusals:
        assert refusal.reason is Reason.BUDGET_EXCEEDED
        assert refusal.facts["budget"] == "requests_per_minute"
        assert 0 < (refusal.retry_after_seconds or 0) <= 60
    assert world.provider.asked("one") == 4
    assert (await (await world.router()).generate(world.ref("one"))).text == "one"


async def test_Generate__tokens_and_spending_stop_the_next_call(world: World) -> None:
    config = world.config()
    config["models"][world.ref("one")] |= {
        "input_micros_per_million_tokens": 1_000_000,
        "output_micros_per_million_tokens": 2_000_000,
    }
    router = await world.router(config)
    await time_left_in(MINUTE)
    await router.prepare(1, max_tokens_per_minute=20)
    assert (await router.generate(world.ref("one"))).text == "one"
    assert (await router.generate(world.ref("one"))).refused.facts["budget"] == "tokens_per_minute"
    # 20 tokens read and 5 written cost 30 millionths by these prices.
    await router.prepare(2, max_spend_micros_per_day=31)
    assert (await router.generate(world.ref("one"))).text == "one"
    assert (await router.generate(world.ref("one"))).refused.facts["budget"] == "spend_per_day"
    await router.prepare(3, max_spend_micros_per_day=1000)
    assert (await router.generate(world.ref("one"))).text == "one"


async def test_policies_and_budgets__are_closed_to_every_other_tenant(world: World) -> None:
    router = await world.router()
    await router.prepare(1, max_tokens_per_minute=1000)
    await router.generate(world.ref("one"))
    for tenant, seen in ((router.tenant, True), (f"t-{secrets.token_hex(4)}", False), ("", False)):
        async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
            await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant,))
            for table in ("tenant_policies", "budget_periods"):
                cursor = await connection.execute(f"select count(*) from {table}")
                [count] = await cursor.fetchone() or (0,)
                assert bool(count) is seen
