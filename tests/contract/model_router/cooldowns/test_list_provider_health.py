"""ListProviderHealth: credentials by their places, and cooldowns."""

from datetime import UTC, datetime, timedelta

from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.store.cooldowns import CooldownRecord, extend_cooldown, notify_cooldowns
from spawnmesh_postgres.database import ALL_TENANTS, open_database

from tests.support.model_router.fixtures import CANARY, World
from tests.support.model_router.provider import openai_error
from tests.support.waiting import eventually

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")


async def test_ListProviderHealth__cooldown_starts_with_the_newest_failure_that_counted(world: World) -> None:
    router = await world.router()
    counted = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=2)
    rest = Cooldown(Scope.MODEL, counted + timedelta(minutes=5), 3, FailoverReason.TIMEOUT, counted)
    target = CooldownTarget(Scope.MODEL, world.ref("one"))
    async with (
        open_database(world.dsn.app, name="test", max_connections=1) as database,
        database.transaction(ALL_TENANTS) as connection,
    ):
        await extend_cooldown(connection, target, CooldownRecord(rest, counted + timedelta(seconds=20)))
        await notify_cooldowns(connection)

    async def found() -> list[routing_pb2.Cooldown]:
        health = await router.call("ListProviderHealth", pb.ListProviderHealthRequest())
        return [one for provider in health.providers for one in provider.cooldowns]

    (one,) = await eventually(found)
    assert (one.start_time.ToDatetime(UTC), one.until_time.ToDatetime(UTC)) == (counted, rest.until)


async def test_ListProviderHealth__names_credentials_by_place_and_shows_no_key(world: World) -> None:
    config = world.config()
    config["providers"][world.scripted]["credentials"] = ["env:ABSENT", "env:KEY"]
    world.provider.on("one", BAD_KEY)
    router = await world.router(config)
    await router.generate(world.ref("one"), strict=True)
    listed = await router.call("ListProviderHealth", pb.ListProviderHealthRequest())
    [health] = [one for one in listed.providers if one.provider == world.scripted]
    assert (health.credential_count, health.readable_credential_count) == (2, 1)
    [rest] = health.cooldowns
    assert (rest.target, rest.reason, rest.failure_count) == (
        f"{world.scripted}/2",
        generation_pb2.FAILOVER_REASON_AUTH,
        1,
    )
    assert CANARY not in str(listed)
