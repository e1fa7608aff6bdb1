"""The unary RPCs: routes, models, health, cooldowns, classified failures and planned retries."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.store.cooldowns import CooldownRecord, extend_cooldown, notify_cooldowns
from spawnmesh_postgres.database import ALL_TENANTS, open_database
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import CANARY, Router, World, image_block, user
from tests.support.model_router.provider import RATE_LIMITED, chat, openai_error, sse
from tests.support.waiting import eventually

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")


async def refusal_of(router: Router, method: str, request: Any, token: str = "") -> Reason:
    with pytest.raises(MeshError) as refused:
        await router.call(method, request, token)
    return refused.value.reason


def a_clear(scope: str, target: str) -> pb.ClearCooldownRequest:
    return pb.ClearCooldownRequest(
        scope=routing_pb2.CooldownScope.Value(f"COOLDOWN_SCOPE_{scope}"), target=target
    )


async def test_ExplainRoute__says_what_generate_would_do_and_calls_nobody(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    world.provider.on("two", sse(*chat("two")))
    router = await world.router(world.config(blind_model_policy="ROUTE_AROUND"))
    await router.generate(world.ref("one"), world.ref("two"))
    asked = len(world.provider.bodies)
    explained = await router.explain(
        world.ref("two"), world.ref("one"), world.ref("blind"), messages=[user("look", image_block())]
    )
    assert explained == [("two", "READY"), ("one", "COOLING"), ("blind", "INCAPABLE")]
    assert len(world.provider.bodies) == asked


async def test_ExplainRoute__lists_what_a_strict_request_excludes(world: World) -> None:
    router = await world.router()
    assert await router.explain(world.ref("two"), strict=True) == [("two", "READY"), ("one", "NOT_NEEDED")]
    assert await refusal_of(router, "ExplainRoute", explain_of("nobody/nothing")) is Reason.UNKNOWN_MODEL


def explain_of(model: str) -> pb.ExplainRouteRequest:
    return pb.ExplainRouteRequest(request=pb.GenerateRequest(model=model, messages=[user("hello")]))


async def test_Generate__explicit_fallbacks_replace_all_others(world: World) -> None:
    config = world.config(fallbacks=[world.ref("blind")])
    router = await world.router(config)
    assert [model for model, _ in await router.explain(world.ref("two"))] == ["two", "blind", "one"]
    assert await router.explain(world.ref("two"), fallbacks=pb.Fallbacks()) == [("two", "READY")]
    assert await router.explain(fallbacks=pb.Fallbacks()) == [("one", "READY")]
    named = pb.Fallbacks(models=[world.ref("blind")])
    assert [model for model, _ in await router.explain(world.ref("two"), fallbacks=named)] == ["two", "blind"]
    both = pb.GenerateRequest(fallback_models=["fast"], fallbacks=named, messages=[user("hello")])
    assert (
        await refusal_of(router, "ExplainRoute", pb.ExplainRouteRequest(request=both))
        is Reason.INVALID_REQUEST
    )


async def test_ListModels__lists_the_capabilities(world: World) -> None:
    models = {
        info.model: info
        for info in (await (await world.router()).call("ListModels", pb.ListModelsRequest())).models
    }
    assert list(models) == sorted(models)
    one, two, blind = (models[world.ref(name)] for name in ("one", "two", "blind"))
    assert (one.is_primary, two.is_primary) == (True, False)
    kinds = {name.partition("/")[0]: info.provider_kind for name, info in models.items()}
    assert kinds == {
        world.scripted: routing_pb2.PROVIDER_KIND_OPENAI_COMPATIBLE,
        world.anthropic: routing_pb2.PROVIDER_KIND_ANTHROPIC,
    }
    assert (list(two.aliases), two.vision, blind.vision, blind.tools) == (["fast"], True, False, False)
    assert (one.context_window_token_count, one.max_output_token_count) == (128000, 4096)


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


async def test_ClassifyError__judges_as_generate_does(world: World) -> None:
    router = await world.router()
    request = pb.ClassifyErrorRequest(http_status=429, message='{"error":{"code":"insufficient_quota"}}')
    judged = await router.call("ClassifyError", request)
    assert judged.reason == generation_pb2.FAILOVER_REASON_BILLING
    assert (judged.is_transient, judged.stops_chain) == (False, False)
    limited = await router.call(
        "ClassifyError", pb.ClassifyErrorRequest(http_status=429, message="slow down")
    )
    assert (limited.reason, limited.is_transient) == (generation_pb2.FAILOVER_REASON_RATE_LIMIT, True)
    image = await router.call(
        "ClassifyError", pb.ClassifyErrorRequest(http_status=400, message="image too large")
    )
    assert (image.reason, image.stops_chain) == (generation_pb2.FAILOVER_REASON_NO_FAILOVER, True)


async def test_PlanRetry__merges_what_was_done_and_withholds_images(world: World) -> None:
    router = await world.router()
    done = [
        generation_pb2.PartialExecution(tool_names=["pay", "a b"]),
        generation_pb2.PartialExecution(),
        generation_pb2.PartialExecution(tool_names=["pay", "read"], sent_to_person=True),
    ]
    plan = await router.call(
        "PlanRetry",
        pb.PlanRetryRequest(
            is_retry=True,
            provider="a",
            first_provider="a",
            previous_reason=generation_pb2.FAILOVER_REASON_FORMAT,
            image_count=2,
            partial_executions=done,
            idempotent_tool_names=["read"],
        ),
    )
    assert (plan.image_count, plan.prompt_image_detection_suppressed) == (0, True)
    assert list(plan.partial_execution.tool_names) == ["pay", "ab", "read"]
    assert "unknown: pay, ab." in plan.notice


async def test_Generate__images_that_the_prompt_names_follow_the_rules_of_images(world: World) -> None:
    world.provider.on("one", openai_error(400, "Unsupported content", "invalid_request_error", None))
    world.provider.on("two", sse(*chat("blind now")))
    router = await world.router()
    named = generation_pb2.NamedImage(name="/srv/a.png", image=image_block().image)
    answered = await router.generate(world.ref("one"), world.ref("two"), named_images=[named])
    first, second = world.provider.bodies
    assert str(first).count("image_url") == 2  # the part's type and its member
    assert "/srv/a.png" in str(first)
    assert "image_url" not in str(second)
    started = [event.attempt_started for event in answered.events if event.HasField("attempt_started")]
    assert [start.prompt_image_detection_suppressed for start in started] == [False, True]
    assert answered.completion.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
