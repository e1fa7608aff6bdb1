"""A provider's key and the tenants' texts go to its configured address alone; no cookie is kept."""

import json
from typing import Any

import pytest
from aiohttp import web

from tests.support.model_router.fixtures import World
from tests.support.model_router.gemini import open_gemini_router, said
from tests.support.model_router.provider import anthropic_answer, chat, open_loopback_provider, sse

PATHS = {
    "one": "/v1/chat/completions",
    "claude": "/v1/messages",
    "flash": "/v1beta/models/flash:streamGenerateContent?alt=sse",
}
EVENTS: dict[str, list[dict[str, Any]]] = {
    "one": chat("here"),
    "claude": anthropic_answer(),
    "flash": [said({"text": "here"}, finish="STOP")],
}


def stream_of(model: str) -> str:
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        if "type" in event
        else f"data: {json.dumps(event)}\n\n"
        for event in EVENTS[model]
    )


class Noting:
    """Answers with a cookie, and keeps the headers of the requests."""

    def __init__(self, model: str) -> None:
        self._model, self.seen = model, list[dict[str, str]]()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.seen.append({name.lower(): value for name, value in request.headers.items()})
        headers = {"content-type": "text/event-stream", "set-cookie": "marker=of-a-tenant; Path=/"}
        return web.Response(text=stream_of(self._model), headers=headers)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("model", PATHS)
async def test_Generate__no_redirect_is_followed(world: World, model: str, status: int) -> None:
    router, flash = await open_gemini_router(world)
    names = {"one": world.ref("one"), "claude": f"{world.anthropic}/claude", "flash": flash}
    async with open_loopback_provider() as elsewhere:
        noting = Noting(model)
        elsewhere.on(model, noting)

        async def redirect(_request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"location": elsewhere.base_url + PATHS[model]})

        world.provider.on(model, redirect)
        world.provider.on("two", sse(*chat("from two")))
        answered = await router.generate(names[model], world.ref("two"))
    assert answered.verdicts[:2] == [
        (model, "FAILED", "SERVER_ERROR"),
        ("two", "ANSWERED", "UNSPECIFIED"),
    ]
    assert noting.seen == []


@pytest.mark.parametrize("model", PATHS)
async def test_Generate__no_cookie_is_kept(world: World, model: str) -> None:
    router, flash = await open_gemini_router(world)
    names = {"one": world.ref("one"), "claude": f"{world.anthropic}/claude", "flash": flash}

    noting = Noting(model)
    world.provider.on(model, noting)
    for _ in range(2):
        assert (await router.generate(names[model], strict=True)).text
    assert len(noting.seen) == 2
    assert not any("cookie" in headers for headers in noting.seen)
