"""The choice of the agents' model: a real one if the environment has a key, otherwise the scripted
one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import aiohttp

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.scripted_model import AGENT, FLAKY, OPENER, SLOW
from spawnmesh_devstack.smollm2 import CONTEXT_TOKENS

SCRIPTED_AGENT, SCRIPTED_FLAKY, SCRIPTED_OPENER, SCRIPTED_SLOW = (
    f"scripted/{model}" for model in (AGENT, FLAKY, OPENER, SLOW)
)
SMOLLM2 = "smollm2"

_SCRIPTED_KEY = "SPAWNMESH_SCRIPTED_KEY"
_SMOLLM2_KEY = "SPAWNMESH_SMOLLM2_KEY"
_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_MODEL = "gpt-4.1-mini"
_ANTHROPIC_MODEL = "claude-haiku-4-5"
_PRICE_VERSION = "2025-10-list"
_SCRIPTED_PRICES = {"input": 1_000_000, "output": 5_000_000}
"""Prices of a million tokens, in millionths of a dollar: a demo shows costs, and has budgets."""
_LISTED_PRICES = {
    f"openai/{_OPENAI_MODEL}": {"input": 400_000, "output": 1_600_000, "cache_read": 100_000},
    f"anthropic/{_ANTHROPIC_MODEL}": {
        "input": 1_000_000,
        "output": 5_000_000,
        "cache_read": 100_000,
        "cache_write": 1_250_000,
    },
}
"""Prices that the providers list for the default models."""
_LIST_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class ModelKind(Enum):
    """The place where the model runs."""

    SCRIPTED = "scripted"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    SMOLLM2 = "smollm2"


@dataclass(frozen=True, slots=True)
class Choice:
    """A model: its name at its provider, and how to reach a remote provider. Only the router gets
    `secrets`.
    """

    kind: ModelKind
    model: str
    provider: Mapping[str, Any]
    secrets: Mapping[str, str]
    description: str

    @property
    def name(self) -> str:
        """The name as `provider/model`."""
        return f"{self.kind.value}/{self.model}"


def scripted_config(port: int) -> dict[str, Any]:
    """Return a router configuration with the scripted models only, served on the port."""
    provider = _compatible(f"http://{LOOPBACK}:{port}/v1", _SCRIPTED_KEY)
    names = (SCRIPTED_AGENT, SCRIPTED_FLAKY, SCRIPTED_OPENER, SCRIPTED_SLOW)
    models = {name: _model(_SCRIPTED_PRICES) for name in names}
    return {
        "primary": SCRIPTED_AGENT,
        "aliases": {},
        "providers": {"scripted": provider},
        "models": models,
        "price_version": _PRICE_VERSION,
    }


def scripted_environment() -> dict[str, str]:
    """Return the key for `scripted_config`; the scripted server accepts any key."""
    return {_SCRIPTED_KEY: "any"}


def config_for(choice: Choice, scripted_port: int, smollm2_port: int) -> dict[str, Any]:
    """Return a router configuration with the chosen model as the primary, beside the
    scripted ones.
    """
    config = scripted_config(scripted_port)
    if choice.kind is ModelKind.SCRIPTED:
        return config
    provider, model = dict(choice.provider), _model(_prices_of(choice))
    if choice.kind is ModelKind.SMOLLM2:
        provider = _compatible(f"http://{LOOPBACK}:{smollm2_port}/v1", _SMOLLM2_KEY)
        model |= {"context_window": CONTEXT_TOKENS, "max_output": CONTEXT_TOKENS // 8}
    return {
        **config,
        "primary": choice.name,
        "providers": {**config["providers"], choice.kind.value: provider},
        "models": {**config["models"], choice.name: model},
    }


async def choose(environment: Mapping[str, str], model: str | None) -> Choice:
    """Return the model that the name or the keys in the environment select, otherwise the scripted
    one.

    Raises StackError for a name that no known provider has.
    """
    if model == SMOLLM2:
        about = "SmolLM2, a small real model, on this machine's CPU"
        return Choice(ModelKind.SMOLLM2, SMOLLM2, {}, {_SMOLLM2_KEY: "any"}, about)
    if key := environment.get("ANTHROPIC_API_KEY"):
        name = model or _ANTHROPIC_MODEL
        provider = {"kind": "anthropic", "credentials": ["env:ANTHROPIC_API_KEY"]}
        return Choice(
            ModelKind.ANTHROPIC, name, provider, {"ANTHROPIC_API_KEY": key}, f"{name}, of Anthropic"
        )
    key, url = environment.get("OPENAI_API_KEY", ""), environment.get("OPENAI_BASE_URL", "")
    if key or url:
        base_url = url or _OPENAI_URL
        name = model or await _offered(base_url, key)
        about = f"{name}, at {base_url}" if url else f"{name}, of OpenAI"
        secrets = {"OPENAI_API_KEY": key or "none"}
        return Choice(ModelKind.OPENAI, name, _compatible(base_url, "OPENAI_API_KEY"), secrets, about)
    if model:
        raise StackError(
            f"there is no model {model!r} on this machine: name {SMOLLM2!r}; or set ANTHROPIC_API_KEY to "
            "name a model of Anthropic, "
            "OPENAI_API_KEY for one of OpenAI, or OPENAI_BASE_URL for one of a server that speaks its "
            "protocol"
        )
    about = "a scripted model: neither OPENAI_API_KEY, OPENAI_BASE_URL nor ANTHROPIC_API_KEY is set"
    return Choice(ModelKind.SCRIPTED, AGENT, {}, {}, about)


async def _offered(base_url: str, key: str) -> str:
    """Return the default model, or the first listed one if the endpoint lists its models and does
    not have the default.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=_LIST_TIMEOUT, headers=headers) as http,
            http.get(f"{base_url.rstrip('/')}/models") as answer,
        ):
            names = [str(model["id"]) for model in (await answer.json())["data"]]
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
        return _OPENAI_MODEL
    return _OPENAI_MODEL if _OPENAI_MODEL in names or not names else names[0]


def _compatible(base_url: str, key_variable: str) -> dict[str, Any]:
    return {"kind": "openai_compatible", "base_url": base_url, "credentials": [f"env:{key_variable}"]}


def _prices_of(choice: Choice) -> Mapping[str, int]:
    """Return the prices of the model; none if it is not known what its provider asks."""
    is_own = choice.provider.get("base_url", _OPENAI_URL) == _OPENAI_URL
    return _LISTED_PRICES.get(choice.name, {}) if is_own else {}


def _model(prices: Mapping[str, int]) -> dict[str, Any]:
    named = {f"{sort}_micros_per_million_tokens": price for sort, price in prices.items()}
    return {"context_window": 128_000, "max_output": 4096, "vision": False, **named}
