"""The configuration of the router: what it refuses, and what a model costs and can do."""

import json
from typing import Any

import pytest
from pydantic import ValidationError
from spawnmesh_model_router.domain.candidates import Capability
from spawnmesh_model_router.domain.router_config import Model, Prices, Provider, RouterConfig

KEY = ["env:KEY"]
MODEL = {"context_window": 1000, "max_output": 100}
CONFIG: dict[str, Any] = {
    "primary": "openai/one",
    "providers": {"openai": {"kind": "openai", "credentials": KEY}},
    "models": {"openai/one": MODEL},
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "openai_compatible"}, "needs base_url"),
        ({"base_url": "ftp://host"}, "must be an http:// or https:// address"),
        ({"base_url": "https://"}, "must be an http:// or https:// address"),
        ({"base_url": "https://user@host"}, "must be an http:// or https:// address"),
        ({"base_url": "https://:secret@host"}, "must be an http:// or https:// address"),
        ({"credentials": ["sk-secret"]}, "env:NAME or file:"),
        ({"credentials": ["file:relative"]}, "env:NAME or file:"),
        ({"credentials": "env:KEY"}, "env:NAME or file:"),
        ({"credentials": ["env:KEY", "env:KEY"]}, "names a credential twice"),
        ({"credentials": []}, "at least 1"),
    ],
)
def test_provider_without_a_usable_address_or_credential_is_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Provider.model_validate_json(json.dumps({"kind": "openai", "credentials": KEY, **fields}))


@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:8080/v1", "https://host"])
def test_provider_has_the_address_that_it_is_given(base_url: str | None) -> None:
    provider = Provider.model_validate_json(
        json.dumps({"kind": "openai", "credentials": KEY, "base_url": base_url})
    )
    assert provider.base_url == base_url


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_output": 1001}, "max_output is more than context_window"),
        ({"max_output": 0}, "greater than 0"),
        ({"thinking": {"high": "High!"}}, "lower-case letters"),
        ({"thinking": {"high": 0}}, "more than 0 tokens"),
        ({"thinking": {"high": -1}}, "more than 0 tokens"),
        ({"thinking": {"off": 1}}, "more than 0 tokens"),
    ],
)
def test_model_that_contradicts_itself_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Model.model_validate_json(json.dumps({**MODEL, **fields}))


def test_output_may_fill_the_window() -> None:
    assert Model.model_validate_json(json.dumps({**MODEL, "max_output": 1000})).max_output == 1000


@pytest.mark.parametrize(
    ("fields", "offers"),
    [
        ({}, {Capability.TOOLS}),
        ({"vision": True}, {Capability.TOOLS, Capability.IMAGES}),
        ({"tools": False}, set()),
    ],
)
def test_model_offers_tools_by_default_and_images_on_demand(
    fields: dict[str, object], offers: set[Capability]
) -> None:
    assert Model.model_validate_json(json.dumps({**MODEL, **fields})).offers == offers


@pytest.mark.parametrize(
    ("fields", "prices"),
    [
        ({}, Prices(input=3, output=5, cache_read=3, cache_write=3)),
        ({"cache_read_micros_per_million_tokens": 0}, Prices(input=3, output=5, cache_read=0, cache_write=3)),
        (
            {"cache_write_micros_per_million_tokens": 0},
            Prices(input=3, output=5, cache_read=3, cache_write=0),
        ),
    ],
)
def test_cached_tokens_have_the_price_of_input_by_default(fields: dict[str, object], prices: Prices) -> None:
    plain = {"input_micros_per_million_tokens": 3, "output_micros_per_million_tokens": 5}
    assert Model.model_validate_json(json.dumps({**MODEL, **plain, **fields})).prices == prices


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, ("USD", "")),
        ({"currency": "EUR", "price_version": "2030-01 list"}, ("EUR", "2030-01 list")),
        ({"price_version": "x" * 64}, ("USD", "x" * 64)),
    ],
)
def test_prices_have_a_currency_and_a_version(fields: dict[str, object], named: tuple[str, str]) -> None:
    config = RouterConfig.model_validate_json(json.dumps({**CONFIG, **fields}))
    assert (config.currency, config.price_version) == named


@pytest.mark.parametrize(
    "fields",
    [
        {"currency": "usd"},
        {"currency": "US$"},
        {"currency": "USD\n"},
        {"currency": "DOLLAR"},
        {"price_version": "x" * 65},
        {"price_version": "v\u00e9"},
        {"price_version": "v1\n"},
        {"price_version": 7},
    ],
)
def test_currency_and_version_that_are_none_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RouterConfig.model_validate_json(json.dumps({**CONFIG, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"primary": "openai/two"}, "primary names no model"),
        ({"fallbacks": ["openai/two"]}, "fallback names no model"),
        ({"aliases": {"fast": "openai/two"}}, "alias 'fast' names no model"),
        ({"providers": {"Open AI": {"kind": "openai", "credentials": KEY}}}, "made of lower-case letters"),
        ({"models": {"other/one": MODEL}}, "not spelled provider/model"),
        ({"models": {"openai/one": {**MODEL, "thinking": {"high": 1024}}}}, "its provider takes words"),
        (
            {
                "providers": {"openai": {"kind": "anthropic", "credentials": KEY}},
                "models": {"openai/one": {**MODEL, "api": "chat"}},
            },
            "has an api",
        ),
    ],
)
def test_configuration_whose_names_do_not_resolve_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RouterConfig.model_validate_json(json.dumps({**CONFIG, **fields}))


def test_alias_is_found_in_any_case() -> None:
    config = RouterConfig.model_validate_json(json.dumps({**CONFIG, "aliases": {" Fast ": "openai/one"}}))
    assert str(config.resolve_model("FAST")) == "openai/one"
    assert config.resolve_model("slow") is None
