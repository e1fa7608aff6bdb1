"""An answer over HTTP while its model gives it: server-sent events of WatchSession."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from aiohttp import ClientSession
from spawnmesh_devstack.models import SCRIPTED_SLOW
from spawnmesh_devstack.stack import Stack

from tests.support.mesh.new_tenant import new_tenant
from tests.support.mesh.plain_http import request


async def watch(address: str, token: str, session_id: str, cursor: str = "") -> AsyncIterator[dict[str, Any]]:
    """Yield the messages behind the cursor as they come, to the end of the session."""
    url = f"http://{address}/v1/sessions/{session_id}:watch"
    params = {"cursor": cursor, "with_transcript": "true"}
    async with (
        asyncio.timeout(120),
        ClientSession() as http,
        http.get(url, params=params, headers={"authorization": f"Bearer {token}"}, timeout=None) as answer,
    ):
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


async def test_text_of_an_answer_comes_before_its_entry_and_a_cursor_continues(
    stack: Stack, gateway: str
) -> None:
    token = stack.client_token(await new_tenant(stack))
    body = {
        "request_id": uuid4().hex,
        "task": "Count as far as you can.",
        "model": SCRIPTED_SLOW,
        "mode": "SESSION_MODE_SESSION",
    }
    spawned = await request(gateway, "POST", "/v1/sessions", token=token, body=body)
    session_id = spawned.as_json["session"]["session_id"]
    first: list[dict[str, Any]] = []
    async with aclosing(watch(gateway, token, session_id)) as messages:
        async for message in messages:
            first.append(message)
            if len([one for one in first if "text" in one.get("draft_delta", {})]) == 2:
                break
    assert first[0]["session_event"]["kind"] == "SESSION_EVENT_KIND_PROVISIONING"
    assert {one["session_id"] for one in first} == {session_id}
    deltas = [one for one in first if "draft_delta" in one]
    begins = [one["draft_delta"].get("begins_draft", False) for one in deltas]
    assert begins == [True, *[False] * (len(deltas) - 1)]
    assert "thinking" in deltas[0]["draft_delta"]
    assert {one["draft_delta"]["model"] for one in deltas} == {SCRIPTED_SLOW}

    path = f"/v1/sessions/{session_id}:interruptRun"
    later: list[dict[str, Any]] = []
    async with aclosing(watch(gateway, token, session_id, deltas[0]["cursor"])) as messages:
        async for message in messages:
            if not later:
                interrupted = await request(gateway, "POST", path, token=token, body={})
                assert interrupted.status == 200, interrupted.body
            later.append(message)
            if message.get("entry_appended", {}).get("completes_draft"):
                break
    pieces = [deltas[0], *(one for one in later if "draft_delta" in one)]
    content = later[-1]["entry_appended"]["entry"]["body"]["message"]["content"]
    for kind in ("thinking", "text"):
        given, heard = (
            "".join(one["draft_delta"].get(kind, "") for one in some) for some in (pieces, deltas)
        )
        assert given.startswith(heard)
        assert given == "".join(block.get(kind, {}).get("text", "") for block in content) != ""
