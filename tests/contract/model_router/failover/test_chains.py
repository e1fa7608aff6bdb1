"""Rules that hold for every chain. The candidates are drawn at random; calls use the public RPC."""

import asyncio
import random
from base64 import b64encode

import pytest
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.model_router.fixtures import PNG, Answered, Router, World, image_block, user
from tests.support.model_router.provider import (
    BROKEN,
    OVERLOADED,
    RATE_LIMITED,
    Answering,
    anthropic_answer,
    chat,
    chunk,
    cut_after,
    error,
    named_sse,
    openai_error,
    raw_sse,
    sse,
)
from tests.support.waiting import eventually

SCENARIOS = 60
IMAGE = b64encode(PNG).decode()
FAILURES: tuple[Answering, ...] = (
    BROKEN,
    OVERLOADED,
    RATE_LIMITED,
    openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key"),
    openai_error(404, "The model does not exist", "invalid_request_error", "model_not_found"),
    openai_error(400, "Unsupported content", "invalid_request_error", None),
    openai_error(
        400, "maximum context length is 10 tokens", "invalid_request_error", "context_length_exceeded"
    ),
    error(502, "<html><title>502 Bad Gateway</title></html>"),
    error(200, "<html>a login page</html>"),
    raw_sse("data: {not json\n\n"),
    raw_sse(""),
    cut_after(chunk({"role": "assistant", "content": "Half an ans"})),
)
ENDS = {Reason.ALL_CANDIDATES_FAILED, Reason.MODEL_REFUSED, Reason.STREAM_BROKEN}


async def clear_all(world: World, router: Router) -> None:
    health = await router.call("ListProviderHealth", pb.ListProviderHealthRequest())
    for provider in health.providers:
        for cooldown in provider.cooldowns:
            request = pb.ClearCooldownRequest(scope=cooldown.scope, target=cooldown.target)
            await router.call("ClearCooldown", request, router.operator)


def verdicts_of(answered: Answered) -> list[str]:
    """Return `model VERDICT …` of each candidate, from the completion or from the refusal."""
    if answered.refusal is None:
        return [
            f"{verdict.model} {generation_pb2.Verdict.Name(verdict.verdict).removeprefix('VERDICT_')}"
            for verdict in answered.completion.verdicts
        ]
    facts = answered.refusal.facts
    return [
        str(facts[f"candidate_{number}"])
        for number in range(1, 1 + sum(key.startswith("candidate_") for key in facts))
    ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", ["STRIP", "ROUTE_AROUND", "REFUSE"])
async def test_every_chain_ends_with_a_verdict_for_each_and_shows_no_image_where_it_may_not(
    world: World, policy: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    names = {"one": world.ref("one"), "two": world.ref("two"), "blind": world.ref("blind")}
    names["claude"] = f"{world.anthropic}/claude"
    router = await world.router(world.config(blind_model_policy=policy))
    for _ in range(SCENARIOS):
        await clear_all(world, router)
        world.provider.bodies.clear()
        chain = draw.sample(sorted(names), draw.randint(1, 4))
        for name in names:
            whole = named_sse(*anthropic_answer(stop="end_turn")) if name == "claude" else sse(*chat("whole"))
            world.provider.on(name, draw.choice(FAILURES) if draw.random() < 0.75 else whole)
        fallbacks = pb.Fallbacks(models=[names[name] for name in chain[1:]])
        answered = await router.generate(
            names[chain[0]], fallbacks=fallbacks, messages=[user("look", image_block())]
        )
        told = verdicts_of(answered)
        assert [one.split()[0] for one in told] == [names[name] for name in chain]
        assert answered.refusal is None or answered.refusal.reason in ENDS, answered.refusal
        asked = [body["model"] for body in world.provider.bodies]
        assert all(
            one.split()[1] in ("ANSWERED", "FAILED")
            for one in told
            if one.split()[0].partition("/")[2] in asked
        )
        shown = [body["model"] for body in world.provider.bodies if IMAGE in str(body)]
        assert "blind" not in shown
        assert len({name == "claude" for name in shown}) <= 1, "images went to two providers"
        assert (
            not answered.refusal or answered.refusal.reason is not Reason.STREAM_BROKEN or asked[-1] in chain
        )
        starts = [
            event.attempt_started.number for event in answered.events if event.HasField("attempt_started")
        ]
        assert starts == list(range(1, len(starts) + 1))


async def test_cooldowns_of_many_replicas_that_fail_at_once_only_move_later(world: World) -> None:
    world.provider.on(
        "one", RATE_LIMITED, openai_error(429, "slow down", "requests", None, retry_after="3600"), BROKEN
    )
    first = await world.router()
    replicas = [first, *[await world.router(tenant=first.tenant) for _ in range(2)]]
    latest = 0.0
    for _ in range(3):
        await asyncio.gather(*(replica.generate(world.ref("one"), strict=True) for replica in replicas))
        for replica in replicas:
            health = await replica.call("ListProviderHealth", pb.ListProviderHealthRequest())
            untils = [
                cooldown.until_time.ToSeconds()
                for provider in health.providers
                for cooldown in provider.cooldowns
                if cooldown.scope == routing_pb2.COOLDOWN_SCOPE_MODEL and cooldown.target == world.ref("one")
            ]
            latest = max([latest, *untils])

    async def all_agree() -> bool:
        for replica in replicas:
            health = await replica.call("ListProviderHealth", pb.ListProviderHealthRequest())
            untils = [one.until_time.ToSeconds() for each in health.providers for one in each.cooldowns]
            if untils != [latest]:
                return False
        return True

    await eventually(all_agree)


async def test_ClassifyError__a_hostile_text_is_judged_in_time(world: World) -> None:
    router = await world.router()
    hostile = ["_" * 900_000, "insufficient " * 60_000, '{"a":' * 100_000, "model " * 100_000, "[" * 500_000]
    # A pattern that backtracks without a bound would take minutes for one of these texts.
    async with asyncio.timeout(60):
        for text in hostile:
            request = pb.ClassifyErrorRequest(message=text, details=[text[:10_000]] * 25)
            await router.call("ClassifyError", request)


async def test_changes_are_refused_while_the_database_is_away(world: World) -> None:
    world.dsn = ServiceDsn("postgresql://nobody@127.0.0.1:9/none", "")
    router = await world.router(is_prepared=False, database_timeout_seconds=0.5)
    clear = pb.ClearCooldownRequest(scope=routing_pb2.COOLDOWN_SCOPE_MODEL, target=world.ref("one"))
    with pytest.raises(MeshError) as refused:
        await router.call("ClearCooldown", clear, router.operator)
    assert refused.value.reason in (Reason.DEPENDENCY_UNAVAILABLE, Reason.POOL_EXHAUSTED)
    with pytest.raises(MeshError) as refused:
        await router.prepare(1)
    assert refused.value.reason in (Reason.DEPENDENCY_UNAVAILABLE, Reason.POOL_EXHAUSTED)
