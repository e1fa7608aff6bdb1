"""The programs outside of the mesh, in this process: a model server that speaks the texts of
`scenes`, and receivers of webhooks.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from spawnmesh_devstack.conversation import Conversation, read_conversation
from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.scripted_agents import Reply, ScriptedCall
from spawnmesh_devstack.scripted_model import chunks, completion

from tests.screenshots.scenes import PATIENT, SCENES, Scene

BUSY = "standard"
"""The model that is always over its limit."""
TICKETS, STATUS_PAGE = "tickets", "status-page"
"""The receivers. The second one is always out of order."""
_DIRECTORY, _CHILDREN = "{files}", "{children}"
_PIECE_SECONDS, _PATIENT_SECONDS = 0.02, 1.5


@asynccontextmanager
async def open_outside() -> AsyncIterator[str]:
    """Serve during the block, and yield the base URL: models are below `/v1`, receivers below `/hooks`."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", _complete)
    app.router.add_post("/hooks/{name}", _receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _receive(http: web.Request) -> web.Response:
    await http.read()
    return web.Response(status=503 if http.match_info["name"] == STATUS_PAGE else 204)


async def _complete(http: web.Request) -> web.StreamResponse:
    request = await http.json()
    if request["model"] == BUSY:
        text = "Rate limit reached for standard: 60 requests in a minute."
        error = {"message": text, "type": "requests", "code": "rate_limit_exceeded"}
        return web.json_response({"error": error}, status=429, headers={"Retry-After": "900"})
    scene, reply = _next_reply(request)
    if not request.get("stream"):
        return web.json_response(completion(request, reply))
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with suppress(ConnectionResetError):  # The session was killed.
        await answer.prepare(http)
        for chunk in chunks(request, reply):
            await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(_PATIENT_SECONDS if scene == PATIENT else _PIECE_SECONDS)
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
    return answer


def _next_reply(request: Mapping[str, Any]) -> tuple[str, Reply]:
    """Return the scene whose beginning the conversation has, and its next reply."""
    conversation = read_conversation(request)
    said = "\n".join(conversation.said())
    name = next((name for name in SCENES if name in said), "")
    scene: Scene = SCENES.get(name, (Reply("Done."),))
    count = sum(message["role"] == "assistant" for message in request["messages"])
    return name, _filled(scene[min(count, len(scene) - 1)], conversation)


def _filled(reply: Reply, conversation: Conversation) -> Reply:
    """Return the reply with the names that the mesh has given to files and children."""
    children = [one.value.get("session_id", "") for one in conversation.results("sessions_spawn")]
    directory = conversation.attachments_directory or "."

    def fill(value: Any) -> Any:
        if value == _CHILDREN:
            return children
        if isinstance(value, str):
            return value.replace(_DIRECTORY, directory)
        if isinstance(value, Mapping):
            return {key: fill(one) for key, one in value.items()}
        return [fill(one) for one in value] if isinstance(value, list) else value

    calls = tuple(ScriptedCall(call.tool, fill(call.arguments)) for call in reply.calls)
    return Reply(reply.text, calls, reply.thinking)
