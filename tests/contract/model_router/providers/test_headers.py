"""No variable of the process's environment reaches a provider, whatever its SDK reads there. No
provider is offered an encoding.
"""

import pytest
from aiohttp import web

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import Answering, anthropic_answer, chat, named_sse, raw_sse, sse

GENERATED = (
    'data: {"candidates":[{"content":{"parts":[{"text":"hi"}],"role":"model"},"finishReason":"STOP"}]}\n\n'
)
READ_BY_SDKS = (
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
    "OPENAI_API_KEY",
    "OPENAI_ADMIN_KEY",
    "OPENAI_WEBHOOK_SECRET",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_API_KEY",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
)


async def test_Generate__no_provider_gets_values_of_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in READ_BY_SDKS:
        monkeypatch.setenv(name, f"canary-{name}")
    for name in ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "x-gateway-token: canary-header\nuser-agent: canary-agent")
    seen: dict[str, dict[str, str]] = {}

    def noting(model: str, answering: Answering) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            seen[model] = dict(request.headers)
            return await answering(request)

        world.provider.on(model, answer)

    noting("one", sse(*chat("one")))
    noting("claude", named_sse(*anthropic_answer()))
    noting("flash", raw_sse(GENERATED))
    config = world.config()
    gemini = f"g{world.scripted}"
    config["providers"][gemini] = {
        "kind": "gemini",
        "base_url": world.provider.base_url,
        "credentials": ["env:KEY"],
    }
    config["models"][f"{gemini}/flash"] = {"context_window": 128000, "max_output": 4096, "vision": True}
    router = await world.router(config)
    for model in (world.ref("one"), f"{world.anthropic}/claude", f"{gemini}/flash"):
        assert (await router.generate(model, strict=True)).text
    assert seen.keys() == {"one", "claude", "flash"}
    assert {headers["Accept-Encoding"] for headers in seen.values()} == {"identity"}
    told = {(model, name, value) for model, headers in seen.items() for name, value in headers.items()}
    assert not {one for one in told if "canary-" in one[2] and "sk-canary-" not in one[2]}
