"""The metrics of failover."""

import asyncio
from urllib.request import urlopen

import pytest
from aiohttp import web
from opentelemetry.sdk.resources import Resource
from spawnmesh_runtime.metrics import Metrics, open_metrics
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import BROKEN, RATE_LIMITED, anthropic_answer, chat, named_sse, sse


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    world.provider.on("claude", named_sse(*anthropic_answer()))
    return world


async def fetched(metrics: Metrics) -> dict[str, float]:
    """Return the router's samples by name and labels, as Prometheus reads them."""
    text = await asyncio.to_thread(
        lambda: urlopen(f"http://127.0.0.1:{metrics.port}/metrics").read().decode()
    )
    lines = [line for line in text.splitlines() if line.startswith("spawnmesh_")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_Generate__failovers_attempts_and_cooldowns_are_counted_and_name_no_tenant(
    world: World,
) -> None:
    world.provider.on("one", RATE_LIMITED)
    world.provider.on("two", BROKEN, sse(*chat("from two")))
    settings = ProcessSettings(metrics_listen="127.0.0.1:0")
    with open_metrics("model-router", settings, Resource.create()) as metrics:
        router = await world.router(metrics=metrics)
        chain = (world.ref("one"), world.ref("two"), f"{world.anthropic}/claude")
        assert (await router.generate(*chain)).verdicts[-1][1] == "ANSWERED"
        # Two candidates are in cooldown, and none fails.
        assert (await router.generate(*chain)).verdicts[-1][1] == "ANSWERED"
        samples = await fetched(metrics)

    attempts = 'spawnmesh_model_router_attempts_total{error_type="%s",spawnmesh_model_router_provider="%s"}'
    assert samples[attempts % ("RATE_LIMIT", world.scripted)] == 1
    assert samples[attempts % ("SERVER_ERROR", world.scripted)] == 1
    assert samples[attempts % ("", world.anthropic)] == 2
    failovers = (
        'spawnmesh_model_router_failovers_total{spawnmesh_failover_reason="%s",'
        'spawnmesh_model_router_next_provider="%s",spawnmesh_model_router_provider="%s"}'
    )
    counted = {
        name: count for name, count in samples.items() if name.startswith("spawnmesh_model_router_failovers_")
    }
    assert counted == {
        failovers % ("RATE_LIMIT", world.scripted, world.scripted): 1,
        failovers % ("SERVER_ERROR", world.anthropic, world.scripted): 1,
    }
    cooldowns = (
        'spawnmesh_model_router_cooldowns_total{spawnmesh_failover_reason="%s",'
        'spawnmesh_model_router_cooldown_audience="tenant",'
        'spawnmesh_model_router_cooldown_scope="model",spawnmesh_model_router_provider="%s"}'
    )
    assert samples[cooldowns % ("RATE_LIMIT", world.scripted)] == 1
    assert samples[cooldowns % ("SERVER_ERROR", world.scripted)] == 1
    assert not any(router.tenant in name for name in samples)


async def test_Generate__a_rest_that_goes_on_is_counted_once_and_a_lone_candidate_is_no_failover(
    world: World,
) -> None:
    side_by_side = asyncio.Event()

    async def refuse(request: web.Request) -> web.StreamResponse:
        if world.provider.asked("one") > 1:
            side_by_side.set()
        await side_by_side.wait()
        return await RATE_LIMITED(request)

    world.provider.on("one", refuse)
    settings = ProcessSettings(metrics_listen="127.0.0.1:0")
    with open_metrics("model-router", settings, Resource.create()) as metrics:
        router = await world.router(metrics=metrics)
        await asyncio.gather(*(router.generate(world.ref("one"), strict=True) for _ in range(4)))
        samples = await fetched(metrics)

    assert [count for name, count in samples.items() if "cooldowns_total" in name] == [1]
    assert not any("failovers_total" in name for name in samples)
