"""Which model is chosen, and the router configuration that comes of it."""

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from spawnmesh_devstack.models import ModelKind, choose, config_for, scripted_config
from spawnmesh_model_router.domain.router_config import RouterConfig


async def test_without_a_key_it_is_the_scripted_one():
    choice = await choose({}, None)

    assert choice.kind is ModelKind.SCRIPTED
    assert config_for(choice, 1, 2) == scripted_config(1)


@pytest.mark.parametrize(
    ("environment", "model", "name"),
    [
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, None, "anthropic/claude-haiku-4-5"),
        ({"ANTHROPIC_API_KEY": "k"}, "claude-opus-4-5", "anthropic/claude-opus-4-5"),
        ({"OPENAI_API_KEY": "k"}, "gpt-5", "openai/gpt-5"),
        ({"OPENAI_API_KEY": "k"}, "smollm2", "smollm2/smollm2"),
    ],
)
async def test_key_or_name_decides_and_the_router_takes_the_configuration(environment, model, name):
    choice = await choose(environment, model)
    config = config_for(choice, 1, 2)

    assert choice.name == name
    assert RouterConfig.model_validate_json(json.dumps(config)).primary == name
    assert "scripted/flaky" in config["models"]


async def test_key_is_handed_on_apart_from_the_configuration():
    choice = await choose({"ANTHROPIC_API_KEY": "sk-secret"}, None)

    assert choice.secrets == {"ANTHROPIC_API_KEY": "sk-secret"}
    assert "sk-secret" not in json.dumps(config_for(choice, 1, 2)) + choice.description


async def offering(*names: str) -> TestServer:
    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in names]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    server = TestServer(app)
    await server.start_server()
    return server


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["llama", "other"], "llama"), (["other", "gpt-4.1-mini"], "gpt-4.1-mini"), ([], "gpt-4.1-mini")],
)
async def test_endpoint_of_ones_own_is_asked_what_it_offers(offered, chosen):
    server = await offering(*offered)
    try:
        choice = await choose({"OPENAI_BASE_URL": str(server.make_url("/v1"))}, None)
    finally:
        await server.close()

    assert choice.model == chosen


async def test_endpoint_that_does_not_say_is_taken_for_the_usual_one():
    choice = await choose({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, None)

    assert choice.model == "gpt-4.1-mini"


@pytest.mark.parametrize(
    ("environment", "model", "has_prices"),
    [
        ({}, None, True),
        ({"ANTHROPIC_API_KEY": "k"}, None, True),
        ({"OPENAI_API_KEY": "k"}, "gpt-4.1-mini", True),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "gpt-4.1-mini", False),
        ({"OPENAI_API_KEY": "k"}, "gpt-5", False),
        ({}, "smollm2", False),
    ],
)
async def test_model_has_the_prices_that_are_known_of_its_provider(environment, model, has_prices):
    choice = await choose(environment, model)
    config = RouterConfig.model_validate_json(json.dumps(config_for(choice, 1, 2)))

    prices = config.models[choice.name].prices
    assert (prices.input > 0, prices.output > 0) == (has_prices, has_prices)
    assert (config.currency, config.price_version) == ("USD", "2025-10-list")
