"""The real model router in front of a provider whose models make the moves of their agents."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web
from spawnmesh_model_router.app import open_service
from spawnmesh_model_router.settings import ModelRouterSettings
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.model_router.provider import USAGE_CHUNK, chat, chunk, sse, tool_part
from tests.support.runner.real_services import Among, OpenRouter
from tests.support.serving import served, shared_settings

PRICE_VERSION = "2026-11"
CALL_TOKENS = USAGE_CHUNK["usage"]["total_tokens"]
CALL_MICROS = CALL_TOKENS * 2
"""A token costs two millionths."""

_PRICE = 2_000_000
_ROLE = re.compile(r"You are (\S+?)@(\S+)\.")

Turn = tuple[str, dict[str, Any]] | str
"""A call of a tool with its arguments, or an answer."""

Step = Turn | list[Turn] | Callable[[str], Turn]
"""A turn, several calls in one answer, or a function of all that the model reads."""


@dataclass
class RoleProvider:
    """A provider whose models make the steps of the agent that the system prompt names.

    An agent that is asked again takes its last step again: a parent that did not wait for its
    children is asked again when their results come.
    """

    steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """The agent of each call."""
    holds: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict)
    """The answer of an agent in a turn, from 0, comes once the event is set."""

    def put(self, agent_id: str, *steps: Step) -> None:
        self.steps[agent_id] = steps

    async def serve(self, request: web.Request) -> web.StreamResponse:
        messages = (await request.json())["messages"]
        role = _ROLE.search(json.dumps(messages[0]))
        assert role is not None
        self.asked.append(role[1])
        turn = sum(message["role"] == "assistant" for message in messages)
        if (hold := self.holds.get((role[1], turn))) is not None:
            await hold.wait()
        steps = self.steps[role[1]]
        step = steps[min(turn, len(steps) - 1)]
        made = step(json.dumps(messages)) if callable(step) else step
        if isinstance(made, str):
            return await sse(*chat(made))(request)
        calls = made if isinstance(made, list) else [made]
        parts = [
            tool_part(index, json.dumps(call[1]), f"call_{uuid4().hex}", call[0])
            for index, call in enumerate(calls)
        ]
        start = chunk({"role": "assistant", "content": ""})
        return await sse(start, *parts, chunk({}, "tool_calls"), USAGE_CHUNK)(request)


@asynccontextmanager
async def open_role_provider() -> AsyncIterator[tuple[RoleProvider, str]]:
    """Serve the provider, and yield it with its address."""
    provider, app = RoleProvider(), web.Application()
    app.router.add_post("/v1/chat/completions", provider.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield provider, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def router_of(database_url: str, provider_url: str, keys: Path, folder: Path) -> OpenRouter:
    """Return what opens a real router whose only model is at the provider."""
    model = {"context_window": 128_000, "max_output": 100}
    model |= {f"{sort}_micros_per_million_tokens": _PRICE for sort in ("input", "output")}
    config = {
        "primary": "scripted/one",
        "providers": {
            "scripted": {"kind": "openai_compatible", "base_url": provider_url, "credentials": ["env:KEY"]}
        },
        "models": {"scripted/one": model},
        "price_version": PRICE_VERSION,
    }
    file = folder / "router.json"
    file.write_text(json.dumps(config))

    def opened(session_target: str) -> AbstractAsyncContextManager[str]:
        settings = ModelRouterSettings(
            **shared_settings("model-router", keys),
            database_url=database_url,
            config_file=file,
            session_target=session_target,
            revocations_wait_seconds=0.0,
            database_timeout_seconds=30.0,
        )

        def open_with_key(
            process: Process, chosen: ProcessSettings
        ) -> AbstractAsyncContextManager[MeshServer]:
            return open_service(process, settings, environ={"KEY": "any"})

        return served("model-router", settings, open_with_key)

    return opened


@dataclass(frozen=True, slots=True)
class Family:
    """The real services, and the provider of the agents."""

    among: Among
    provider: RoleProvider

    async def put(self, agent_id: str, *steps: Step) -> None:
        """Create an agent that takes these steps."""
        self.provider.put(agent_id, *steps)
        await self.among.put(agent_id)
