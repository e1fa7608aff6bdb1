"""A pool of keys: a rate limit rests the key that met it, and the others go on."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.store import cooldowns as store
from spawnmesh_model_router.store.cooldowns import CooldownRecord
from spawnmesh_postgres.database import ALL_TENANTS, open_database

from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import RATE_LIMITED, chat, openai_error, sse

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")
GOOD = sse(*chat("from one"))


def limited(milliseconds: int) -> Any:
    return openai_error(
        429, "Rate limit reached", "requests", "rate_limit_exceeded", retry_after_ms=str(milliseconds)
    )


async def start(world: World, keys: int, **settings: Any) -> Router:
    """Start a router whose provider has this number of keys."""
    world.environ = {f"KEY_{number}": f"sk-{number}" for number in range(keys)} | {"KEY": "sk-other"}
    config = world.config()
    config["providers"][world.scripted]["credentials"] = [f"env:KEY_{number}" for number in range(keys)]
    world.provider.on("two", sse(*chat("from two")))
    return await world.router(config, **settings)


async def targets(router: Router) -> list[str]:
    """Return the target of each cooldown of a credential, without the provider."""
    health = await router.call("ListProviderHealth", pb.ListProviderHealthRequest())
    return sorted(
        cooldown.target.partition("/")[2]
        for provider in health.providers
        for cooldown in provider.cooldowns
        if cooldown.scope == routing_pb2.COOLDOWN_SCOPE_CREDENTIAL
    )


async def test_Generate__a_rate_limit_rests_the_key_that_met_it(world: World) -> None:
    world.provider.on("one", RATE_LIMITED, GOOD)
    router = await start(world, 2)
    for _ in range(3):
        assert (await router.generate(world.ref("one"), world.ref("two"))).text == "from one"
    assert world.provider.keys == ["sk-0", "sk-1", "sk-1", "sk-1"]
    assert await targets(router) == ["1/one"]
    assert {(await router.generate(world.ref("two"))).text for _ in range(2)} == {"from two"}
    assert set(world.provider.keys[4:]) == {"sk-0", "sk-1"}, "the limit of one model is not of the other"


async def test_Generate__tries_every_key_before_the_next_candidate(world: World) -> None:
    world.provider.on("one", RATE_LIMITED, BAD_KEY, RATE_LIMITED, GOOD)
    router = await start(world, 4)
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "from one"
    assert world.provider.keys == ["sk-0", "sk-1", "sk-2", "sk-3"]


async def test_Generate__the_model_rests_when_all_its_keys_do(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    router = await start(world, 3)
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "from two"
    assert world.provider.asked("one") == 3
    assert await router.explain(world.ref("one"), world.ref("two")) == [("one", "COOLING"), ("two", "READY")]
    assert await targets(router) == ["1/one", "2/one", "3/one"]


@pytest.mark.parametrize("scope", ["CREDENTIAL", "MODEL"])
async def test_ClearCooldown__of_a_key_at_a_model(world: World, scope: str) -> None:
    world.provider.on("one", RATE_LIMITED)
    router = await start(world, 2)
    await router.generate(world.ref("one"), world.ref("two"))
    target = f"{world.scripted}/{'2/one' if scope == 'CREDENTIAL' else 'one'}"
    request = pb.ClearCooldownRequest(scope=f"COOLDOWN_SCOPE_{scope}", target=target)
    assert (await router.call("ClearCooldown", request, router.operator)).was_cooling
    assert await targets(router) == (["1/one"] if scope == "CREDENTIAL" else [])
    assert (await router.explain(world.ref("one")))[0] == ("one", "READY")


@pytest.mark.parametrize("second", [limited(300), BAD_KEY], ids=["limited", "refused"])
async def test_Generate__waits_for_the_key_that_is_free_first(world: World, second: Any) -> None:
    waits = (60_000, 300) if second is not BAD_KEY else (300, 0)
    world.provider.on("one", limited(waits[0]), second, GOOD)
    router = await start(world, 2, tries_at_last_candidate=2)
    assert (await router.generate(world.ref("one"), strict=True)).text == "from one"
    assert world.provider.keys == ["sk-0", "sk-1", "sk-0" if second is BAD_KEY else "sk-1"]


@pytest.mark.parametrize(
    ("reason", "answers"), [(FailoverReason.RATE_LIMIT, True), (FailoverReason.MODEL_NOT_FOUND, False)]
)
async def test_Generate__waits_for_a_cooldown_that_ends_before_the_deadline(
    world: World, reason: FailoverReason, answers: bool
) -> None:
    world.provider.on("one", GOOD)
    now = datetime.now(UTC)
    failed, until = now - timedelta(seconds=60), now + timedelta(seconds=3 if answers else 15)
    rest = CooldownRecord(Cooldown(Scope.MODEL, until, 1, reason, failed), failed)
    async with (
        open_database(world.dsn.app, name="test", max_connections=1) as database,
        database.transaction(ALL_TENANTS) as connection,
    ):
        await store.extend_cooldown(connection, CooldownTarget(Scope.MODEL, world.ref("one")), rest)
    config = world.config(primary=world.ref("two"))  # A primary would be probed at once.
    router = await world.router(config)
    answered = await router.generate(world.ref("one"), strict=True)
    assert answered.text == ("from one" if answers else "")
    if answers:
        assert datetime.now(UTC) >= until
    else:
        assert answered.refused.reason is Reason.ALL_CANDIDATES_FAILED
