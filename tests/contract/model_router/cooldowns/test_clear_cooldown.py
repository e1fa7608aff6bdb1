"""ClearCooldown: an operator ends a cooldown, at every replica."""

from pathlib import Path

import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import World, refusal_of
from tests.support.model_router.provider import RATE_LIMITED, chat, openai_error, sse
from tests.support.waiting import eventually

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")


def a_clear(scope: str, target: str) -> pb.ClearCooldownRequest:
    return pb.ClearCooldownRequest(
        scope=routing_pb2.CooldownScope.Value(f"COOLDOWN_SCOPE_{scope}"), target=target
    )


async def test_ClearCooldown__ends_the_rest_here_and_at_the_other_replica(world: World) -> None:
    world.provider.on("one", RATE_LIMITED, sse(*chat("again")))
    first = await world.router()
    second = await world.router(tenant=first.tenant)
    await first.generate(world.ref("one"), strict=True)

    async def is_cooling() -> bool:
        return await second.explain(world.ref("one"), fallbacks=pb.Fallbacks()) == [("one", "COOLING")]

    await eventually(is_cooling)
    clear = a_clear("MODEL", world.ref("one"))
    assert (await first.call("ClearCooldown", clear, first.operator)).was_cooling
    assert (await first.generate(world.ref("one"))).text == "again"

    async def is_ready() -> bool:
        return not await is_cooling()

    await eventually(is_ready)
    assert not (await first.call("ClearCooldown", clear, first.operator)).was_cooling


async def test_ClearCooldown__of_a_credential_by_its_place(world: World) -> None:
    world.provider.on("one", BAD_KEY, sse(*chat("again")))
    router = await world.router()
    await router.generate(world.ref("one"), strict=True)
    assert await router.explain(world.ref("one")) == [("one", "COOLING")]
    clear = a_clear("CREDENTIAL", f"{world.scripted}/1")
    assert (await router.call("ClearCooldown", clear, router.operator)).was_cooling
    assert (await router.generate(world.ref("one"))).text == "again"


@pytest.mark.parametrize(
    ("scope", "target"),
    [("MODEL", "no/model"), ("CREDENTIAL", "{}/9"), ("CREDENTIAL", "{}/x"), ("PROVIDER", "none")],
)
async def test_ClearCooldown__of_what_is_not_configured(world: World, scope: str, target: str) -> None:
    router = await world.router()
    request = a_clear(scope, target.format(world.scripted))
    assert await refusal_of(router, "ClearCooldown", request, router.operator) is Reason.NOT_FOUND


async def test_ClearCooldown__is_for_operators_alone(world: World, keys: Path) -> None:
    router = await world.router()
    run = TokenMinter("session", keys / "session.pem").run_token(router.tenant, "ses_1", "run_1", 1, 600)
    for token in (router.token, run):
        request = a_clear("MODEL", world.ref("one"))
        assert await refusal_of(router, "ClearCooldown", request, token) is Reason.CALLER_NOT_ALLOWED
