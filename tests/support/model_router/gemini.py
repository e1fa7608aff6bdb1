"""Gemini at the loopback provider."""

import json
import secrets
from typing import Any

from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import Answering, raw_sse


async def open_gemini_router(world: World, **settings: Any) -> tuple[Router, str]:
    """Return a router with a Gemini model beside the others, and the name of that model."""
    name = f"g{secrets.token_hex(4)}"
    config = world.config()
    config["providers"][name] = {
        "kind": "gemini",
        "base_url": world.provider.base_url,
        "credentials": ["env:KEY"],
    }
    config["models"][f"{name}/flash"] = {"context_window": 1_000_000, "max_output": 8192, "vision": True}
    return await world.router(config, **settings), f"{name}/flash"


def streamed(*chunks: dict[str, Any]) -> Answering:
    return raw_sse("".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks))


def said(*parts: dict[str, Any], finish: str = "", **more: Any) -> dict[str, Any]:
    candidate = {
        "content": {"role": "model", "parts": list(parts)},
        "index": 0,
        **({"finishReason": finish} if finish else {}),
    }
    return {"candidates": [candidate], "modelVersion": "flash-served", "responseId": "r-1", **more}
