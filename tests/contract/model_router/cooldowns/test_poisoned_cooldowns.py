"""The failures of one tenant's calls take no model from other tenants."""

import secrets
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.domain.audience import TenantFailure
from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.metrics import RouterMetrics
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_model_router.store import cooldowns as store
from spawnmesh_model_router.store.cooldowns import CooldownRecord
from spawnmesh_postgres.database import ALL_TENANTS, open_database
from spawnmesh_postgres.listener import Subscription
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.metrics import NO_METRICS
from spawnmesh_runtime.tokens import TokenMinter

from tests.support import tenancy
from tests.support.model_router.fixtures import Router, World, user
from tests.support.model_router.provider import BROKEN, OVERLOADED, RATE_LIMITED, chat, openai_error, sse
from tests.support.waiting import eventually

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")
FORBIDDEN = openai_error(403, "Request blocked", "invalid_request_error", None)
UNPAID = openai_error(402, "This request requires more credits", "invalid_request_error", None)
FOR_A_DAY = openai_error(
    429, "Rate limit reached for requests", "requests", "rate_limit_exceeded", retry_after="86400"
)
GOOD = sse(*chat("from one"))
CAUSED_BY_REQUESTS = {
    "500": BROKEN,
    "429": RATE_LIMITED,
    "529": OVERLOADED,
    "402": UNPAID,
    "403": FORBIDDEN,
    "404": openai_error(404, "No endpoint supports this request", "not_found", None),
}


def other_tenant() -> str:
    return f"t-{secrets.token_hex(4)}"


async def fail(router: Router, world: World) -> None:
    assert (await router.generate(world.ref("one"), strict=True)).refused.reason is (
        Reason.ALL_CANDIDATES_FAILED
    )


async def state_of(router: Router, world: World) -> tuple[str, str]:
    """Return the verdict on model one, and the audience of its cooldown."""
    request = pb.GenerateRequest(model=world.ref("one"), strict=True, messages=[user("hello")])
    answer = await router.call("ExplainRoute", pb.ExplainRouteRequest(request=request))
    verdict = answer.candidates[0]
    return (
        generation_pb2.Verdict.Name(verdict.verdict).removeprefix("VERDICT_"),
        generation_pb2.CooldownAudience.Name(verdict.cooling_audience).removeprefix("COOLDOWN_AUDIENCE_"),
    )


async def until(router: Router, world: World, state: tuple[str, str]) -> None:
    async def reached() -> bool:
        return await state_of(router, world) == state

    await eventually(reached)


async def cooldowns(router: Router, token: str = "") -> list[routing_pb2.Cooldown]:
    health = await router.call("ListProviderHealth", pb.ListProviderHealthRequest(), token)
    return [cooldown for provider in health.providers for cooldown in provider.cooldowns]


def left(end: Timestamp) -> timedelta:
    return end.ToDatetime(tzinfo=UTC) - datetime.now(UTC)


OWN = ("COOLING", "TENANT")
ALL = ("COOLING", "ALL_TENANTS")
READY = ("READY", "UNSPECIFIED")


@pytest.mark.parametrize("cause", CAUSED_BY_REQUESTS)
async def test_Generate__a_failure_that_a_request_can_cause_rests_the_model_for_its_tenant(
    world: World, cause: str
) -> None:
    world.provider.on("one", CAUSED_BY_REQUESTS[cause], GOOD)
    mallory = await world.router()
    alice = await mallory.for_tenant(other_tenant())
    await fail(mallory, world)
    assert await state_of(mallory, world) == OWN
    assert await state_of(alice, world) == READY
    assert (await alice.generate(world.ref("one"))).text == "from one"
    assert await state_of(mallory, world) == OWN  # The answer was not to its request.


async def test_Generate__a_tenant_that_makes_a_model_fail_again_and_again_rests_it_for_itself(
    world: World,
) -> None:
    world.provider.on("one", BROKEN)
    mallory = await world.router()
    alice = await mallory.for_tenant(other_tenant())
    clear = pb.ClearCooldownRequest(
        scope=routing_pb2.COOLDOWN_SCOPE_MODEL, target=world.ref("one"), tenant_id=mallory.tenant
    )
    for _ in range(4):
        await fail(mallory, world)
        assert (await mallory.call("ClearCooldown", clear, mallory.operator)).was_cooling
    await fail(mallory, world)
    assert await state_of(alice, world) == READY


async def test_Generate__a_second_tenant_confirms_the_failure_for_all(world: World) -> None:
    world.provider.on("one", BROKEN)
    first = await world.router()
    second = await first.for_tenant(other_tenant())
    third = await first.for_tenant(other_tenant())
    await fail(first, world)
    await fail(second, world)
    assert await state_of(third, world) == ALL
    answered = await third.generate(world.ref("one"), strict=True)
    assert " COOLING SERVER_ERROR until " in str(answered.refused.facts["candidate_1"])
    assert world.provider.asked("one") == 2


async def test_Generate__another_failure_of_a_second_tenant_confirms_nothing(world: World) -> None:
    world.provider.on("one", BROKEN, RATE_LIMITED)
    first = await world.router()
    second = await first.for_tenant(other_tenant())
    third = await first.for_tenant(other_tenant())
    await fail(first, world)
    await fail(second, world)
    assert await state_of(third, world) == READY


async def test_Generate__an_answer_between_two_failures_refutes_the_first(world: World) -> None:
    world.provider.on("one", BROKEN, GOOD, BROKEN)
    first = await world.router()
    second = await first.for_tenant(other_tenant())
    third = await first.for_tenant(other_tenant())
    await fail(first, world)
    assert (await third.generate(world.ref("one"))).text == "from one"
    await fail(second, world)
    assert await state_of(second, world) == OWN
    assert await state_of(third, world) == READY


async def test_Generate__what_no_request_can_cause_rests_the_credential_for_all(world: World) -> None:
    world.provider.on("one", BAD_KEY)
    first = await world.router()
    second = await first.for_tenant(other_tenant())
    await fail(first, world)
    assert await state_of(second, world) == ALL


async def test_Generate__a_provider_cannot_ask_for_a_day(world: World) -> None:
    world.provider.on("one", FOR_A_DAY)
    first = await world.router()
    second = await first.for_tenant(other_tenant())
    await fail(first, world)
    await fail(second, world)
    by_tenant = {one.tenant_id: one.until_time for one in await cooldowns(first, first.operator)}
    assert timedelta(minutes=50) < left(by_tenant[first.tenant]) <= timedelta(hours=1)
    assert timedelta(minutes=4) < left(by_tenant[""]) <= timedelta(minutes=5)


async def test_Generate__rate_limits_of_one_tenant_leave_a_pool_of_credentials_to_others(
    world: World,
) -> None:
    config = world.config()
    config["providers"][world.scripted]["credentials"] = ["env:KEY", "env:OTHER_KEY"]
    world.provider.on("one", RATE_LIMITED, RATE_LIMITED, GOOD)
    mallory = await world.router(config)
    alice = await mallory.for_tenant(other_tenant())
    await fail(mallory, world)
    assert world.provider.asked("one") == 2
    assert await state_of(mallory, world) == OWN
    assert (await alice.generate(world.ref("one"))).text == "from one"


async def test_Generate__another_replica_rests_the_model_for_the_tenant_alone(world: World) -> None:
    world.provider.on("one", BROKEN)
    here = await world.router()
    there = await world.router(tenant=here.tenant)
    await fail(here, world)
    await until(there, world, OWN)
    assert await state_of(await there.for_tenant(other_tenant()), world) == READY


async def test_Generate__tenants_of_two_replicas_confirm_a_failure_for_all(world: World) -> None:
    world.provider.on("one", BROKEN)
    here, there = await world.router(), await world.router()
    await fail(here, world)
    await fail(there, world)
    tenant = other_tenant()
    for router in (here, there):
        await until(await router.for_tenant(tenant), world, ALL)


async def test_sync__failures_that_two_replicas_did_not_know_of_each_other_are_confirmed(
    world: World,
) -> None:
    target = CooldownTarget(Scope.MODEL, world.ref("one"))
    now = datetime.now(UTC)
    async with open_database(world.dsn.app, name="test", max_connections=2) as database:
        metrics = RouterMetrics(NO_METRICS.meter)
        here, there = (CooldownCache(database, Subscription(), metrics) for _ in range(2))
        here.record_failure(target, TenantFailure("acme", FailoverReason.TIMEOUT, now), None)
        there.record_failure(target, TenantFailure("globex", FailoverReason.TIMEOUT, now), None)
        assert here.get(target, "initech") is there.get(target, "initech") is None
        for cache in (here, there, here):
            assert await cache.sync()
        for cache in (here, there):
            cooldown = cache.get(target, "initech")
            assert cooldown is not None
            assert (cooldown.failures, cooldown.until) == (1, now + timedelta(seconds=30))
        # It is used up: the next failure of one of them confirms nothing.
        later = TenantFailure("acme", FailoverReason.TIMEOUT, now + timedelta(seconds=40))
        here.record_failure(target, later, None)
        assert await here.sync()
        assert here.get(target, "initech") == cooldown


async def test_sync__an_answer_elsewhere_refutes_a_failure_that_is_not_saved(world: World) -> None:
    target = CooldownTarget(Scope.MODEL, world.ref("one"))
    now = datetime.now(UTC)
    async with open_database(world.dsn.app, name="test", max_connections=2) as database:
        metrics = RouterMetrics(NO_METRICS.meter)
        here, there = (CooldownCache(database, Subscription(), metrics) for _ in range(2))
        here.record_failure(target, TenantFailure("acme", FailoverReason.TIMEOUT, now), None)
        for cache in (here, there):
            assert await cache.sync()
        there.record_success(target, "initech", now + timedelta(seconds=1))
        failure = TenantFailure("globex", FailoverReason.TIMEOUT, now + timedelta(seconds=2))
        there.record_failure(target, failure, None)
        for cache in (there, here):
            assert await cache.sync()
            assert cache.get(target, "initech") is None
            assert cache.get(target, "acme") is not None


async def test_ListProviderHealth__shows_a_client_no_cooldown_of_another_tenant(world: World) -> None:
    world.provider.on("one", BROKEN)
    mallory = await world.router()
    alice = await mallory.for_tenant(other_tenant())
    await fail(mallory, world)
    [own] = await cooldowns(mallory)
    assert (own.audience, own.tenant_id) == (generation_pb2.COOLDOWN_AUDIENCE_TENANT, mallory.tenant)
    assert await cooldowns(alice) == []
    assert await cooldowns(alice, alice.operator) == [own]


async def test_ClearCooldown__of_all_tenants_includes_that_of_each(world: World) -> None:
    world.provider.on("one", BROKEN)
    first = await world.router()
    second = await first.for_tenant(other_tenant())
    await fail(first, world)
    await fail(second, world)
    clear = pb.ClearCooldownRequest(scope=routing_pb2.COOLDOWN_SCOPE_MODEL, target=world.ref("one"))
    assert (await first.call("ClearCooldown", clear, first.operator)).was_cooling
    assert await cooldowns(first, first.operator) == []
    assert await state_of(first, world) == READY
    await fail(first, world)  # The evidence is deleted, too: this confirms nothing.
    assert await state_of(second, world) == READY


async def test_PurgeTenant__deletes_the_cooldowns_of_the_tenant(world: World) -> None:
    world.provider.on("one", BROKEN)
    first = await world.router()
    await fail(first, world)
    there = await world.router(tenant=first.tenant)
    await until(there, world, OWN)
    with use_token(TokenMinter("session", first.keys / "session.pem").service_token(first.tenant)):
        purged = await tenancy.purge(first.peer)
    assert purged.removed["cooldowns"] == 1

    async def forgotten() -> bool:
        # A replica that reads the cooldowns while they are deleted has them until it reads again.
        return [await cooldowns(one, one.operator) for one in (first, there)] == [[], []]

    await eventually(forgotten)
    # A replica that learns of the purge late adds none.
    now = datetime.now(UTC)
    late = Cooldown(Scope.MODEL, now + timedelta(hours=1), 1, FailoverReason.RATE_LIMIT, now)
    target = CooldownTarget(Scope.MODEL, world.ref("one"), first.tenant)
    async with (
        open_database(world.dsn.app, name="test", max_connections=2) as database,
        database.transaction(ALL_TENANTS) as connection,
    ):
        await store.extend_cooldown(connection, target, CooldownRecord(late, now))
        assert target not in await store.list_cooldowns(connection)
