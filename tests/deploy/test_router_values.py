"""The chart refuses the configurations that the router refuses, and names the value."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from spawnmesh_model_router.domain.candidates import MAX_ALIAS_STEPS
from spawnmesh_model_router.domain.router_config import RouterConfig

from tests.support.deploy.rendering import CI, Object, helm, refusal

SIZES = {"context_window": 1000, "max_output": 100}
KEYS = ["file:/run/secrets/providers/key"]
PROVIDERS = {
    "openai": {"kind": "openai", "credentials": KEYS},
    "anthropic": {"kind": "anthropic", "credentials": KEYS},
    "local": {"kind": "openai_compatible", "base_url": "https://models.example.com/v1", "credentials": KEYS},
}
CONFIG = {
    "primary": "fast",
    "fallbacks": ["OpenAI/gpt-4.1-mini", " careful "],
    "aliases": {"Fast": "local/qwen/qwen3", "careful": "Best", "best": "anthropic/claude"},
    "providers": PROVIDERS,
    "models": {
        "openai/gpt-4.1-mini": {**SIZES, "api": "responses", "thinking": {"high": "high"}},
        "anthropic/claude": {**SIZES, "thinking": {"off": 0, "high": 50}},
        "local/qwen/qwen3": SIZES,
    },
}


def changed(path: str, value: Any) -> Object:
    """Return the configuration with another value at the path, whose names are separated by `>`."""
    config: Object = json.loads(json.dumps(CONFIG))
    *folders, name = path.split(">")
    at = config
    for folder in folders:
        at = at[folder]
    at[name] = value
    return config


CHAIN = {f"a{step}": f"a{step + 1}" for step in range(MAX_ALIAS_STEPS + 1)}
WRONG = [
    (changed("primary", "openai/gpt-5"), 'modelRouter.config.primary is "openai/gpt-5"'),
    (changed("primary", "gpt-4.1-mini"), "modelRouter.config.primary"),
    (changed("fallbacks", ["fast", "none"]), "modelRouter.config.fallbacks[1]"),
    (changed("aliases>worse", "none"), "modelRouter.config.aliases.worse"),
    (changed("aliases", {**CONFIG["aliases"], **CHAIN, f"a{MAX_ALIAS_STEPS + 1}": "local/qwen/qwen3"}), "aliases.a0"),
    (changed("models>azure/gpt", SIZES), 'modelRouter.config.models has "azure/gpt"'),
    (changed("models>Local/other", SIZES), "Local/other"),
    (changed("models>local", SIZES), 'has "local"'),
    (changed("models>local/small", {**SIZES, "max_output": 2000}), "modelRouter.config.models.local/small.max_output is 2000"),
    (changed("models>anthropic/claude>api", "chat"), "modelRouter.config.models.anthropic/claude.api"),
    (changed("models>local/qwen/qwen3>thinking", {"high": 50}), "models.local/qwen/qwen3.thinking.high"),
    (changed("models>anthropic/claude>thinking", {"high": 0}), "models.anthropic/claude.thinking.high"),
    (changed("models>anthropic/claude>thinking", {"off": 5}), "models.anthropic/claude.thinking.off"),
    (changed("providers>local>base_url", None), "base_url"),
    (changed("providers>openai>credentials", KEYS * 2), "/modelRouter/config/providers/openai/credentials"),
]  # fmt: skip


def values(config: Object) -> Object:
    return {"modelRouter": {"config": config}}


@pytest.mark.parametrize(("config", "named"), WRONG, ids=[named for _, named in WRONG])
def test_what_the_router_refuses_is_refused_by_its_path(tmp_path: Path, config: Object, named: str) -> None:
    with pytest.raises(ValidationError):
        RouterConfig.model_validate_json(json.dumps(config))
    assert named in refusal(tmp_path, values(config))


def test_what_the_router_takes_is_taken(tmp_path: Path) -> None:
    RouterConfig.model_validate_json(json.dumps(CONFIG))
    over = tmp_path / "over.yaml"
    over.write_text(json.dumps(values(CONFIG)))
    done = helm(str(CI / "minimal.yaml"), str(over))
    assert done.returncode == 0, done.stderr
