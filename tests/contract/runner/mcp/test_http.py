"""MCP servers at addresses: what the runner sends, and the limits of responses.

They speak HTTP by hand.
"""

import asyncio
import gzip
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_router.answers import calling
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.mcp_fixtures import RESULT, config, text, tool_results
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

CALL = ("mcp__h__one", "{}")
TOKEN = "sesame-sesame-sesame"
Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


async def send(
    writer: asyncio.StreamWriter,
    body: object,
    *headers: str,
    status: str = "200 OK",
    content_type: str = "application/json",
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status}",
        f"content-type: {content_type}",
        f"content-length: {len(data)}",
        *headers,
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode() + data)
    await writer.drain()


@asynccontextmanager
async def site(answer: Answer, seen: list[str]) -> AsyncIterator[str]:
    """Start a server that shakes hands, lists one tool and answers its calls with `answer`.

    `seen` gets the method, the path and the headers of each request.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                seen.append(head.decode())
                fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                message = json.loads(body) if body else {}
                await reply(message, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def reply(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number, method = message.get("id"), message.get("method")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            about = {
                "protocolVersion": version,
                "capabilities": {},
                "serverInfo": {"name": "h", "version": "1"},
            }
            await send(writer, {"jsonrpc": "2.0", "id": number, "result": about}, "mcp-session-id: s1")
        elif method == "tools/list":
            tools = [{"name": "one", "inputSchema": {"type": "object"}}]
            await send(writer, {"jsonrpc": "2.0", "id": number, "result": {"tools": tools}})
        elif method == "tools/call":
            await answer(message, writer)
        elif number is not None:
            await send(writer, {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}})
        else:
            await send(writer, b"", status="405 No" if not message else "202 Accepted")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()


async def called(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, answer: Answer, seen: list[str], **options: Any
) -> str:
    async with site(answer, seen) as url:
        server = {"url": url, "call_timeout_seconds": 10, **options}
        file = config(tmp_path, h=server)
        [result] = await tool_results(mesh, keys, tmp_path, CALL, mcp_servers=("h",), mcp_config_file=file)
    return text(result)


def result_of(message: dict[str, Any], result: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": result}]}}


async def test_secrets_are_sent_as_headers_and_appear_nowhere_else(
    mesh: ScriptedMesh,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HUB_TOKEN", TOKEN)
    seen: list[str] = []

    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, result_of(message, f"your token is {TOKEN}"))

    headers = {"X-Team": "north", "X-Api-Key": "env:HUB_TOKEN"}
    result = await called(mesh, keys, tmp_path, answer, seen, headers=headers, bearer_token="env:HUB_TOKEN")
    assert result == "your token is [$redacted:mcp_secret]"
    for head in seen:
        assert f"authorization: Bearer {TOKEN}" in head or f"Authorization: Bearer {TOKEN}" in head
        assert "north" in head
    assert seen[-1].startswith("DELETE /mcp"), "the session is ended"
    assert "mcp-session-id: s1" in seen[-1].lower()
    kept = b"".join(one.SerializeToString() for one in (*mesh.entries, *mesh.prompts)).decode(errors="ignore")
    assert TOKEN not in kept + capsys.readouterr().out


async def test_a_redirect_is_not_followed(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    elsewhere: list[str] = []

    async def lure(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, result_of(message, "lured"))

    async with site(lure, elsewhere) as place:

        async def answer(_message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            await send(writer, b"", f"location: {place}", status="307 Temporary Redirect")

        result = await called(mesh, keys, tmp_path, answer, [])
    assert result.startswith("MCP_ERROR: ")
    assert elsewhere == []


async def test_an_endless_answer_is_aborted(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    sent = 0

    async def answer(_message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
        while sent < 200_000_000:
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    result = await called(mesh, keys, tmp_path, answer, [])
    assert result.startswith("MCP_")
    assert sent < 60_000_000


def events(*messages: dict[str, Any]) -> bytes:
    """Return an answer that is a stream of these messages."""
    return b"".join(b"data: " + json.dumps(message).encode() + b"\n\n" for message in messages)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_an_answer_of_millions_of_values_is_not_read(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, content_type: str
) -> None:
    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        wide = result_of(message, "read all the same")
        wide["result"]["_meta"] = {"numbers": [0] * 2_000_000}
        body = json.dumps(wide).encode() if "json" in content_type else events(wide)
        await send(writer, body, content_type=content_type)

    result = await called(mesh, keys, tmp_path, answer, [], call_timeout_seconds=2)
    assert result.startswith("MCP_")


async def test_the_values_of_many_events_do_not_add_up(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        told = {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "data": [0] * 1000},
        }
        await send(
            writer, events(*[told] * 1500, result_of(message, "at last")), content_type="text/event-stream"
        )

    assert await called(mesh, keys, tmp_path, answer, []) == "at last"


async def test_a_compressed_answer_is_refused(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(
            writer, gzip.compress(json.dumps(result_of(message, "small")).encode()), "content-encoding: gzip"
        )

    assert (await called(mesh, keys, tmp_path, answer, [])).startswith("MCP_SERVER_LOST: ")


@pytest.mark.parametrize("status", ["200 OK", "500 No", "401 No"])
async def test_malformed_messages_are_not_logged(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: str
) -> None:
    async def answer(_message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, b"private words, and no JSON", status=status)

    with caplog.at_level(logging.DEBUG):
        result = await called(mesh, keys, tmp_path, answer, [])
    assert result.startswith("MCP_ERROR: ")
    assert "private words" not in caplog.text


async def test_a_vanished_server_is_reported_and_reconnected(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:

        async def vanish(_message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            await stack.aclose()  # It listens no more.
            writer.transport.abort()

        url = await stack.enter_async_context(site(vanish, []))
        file = config(tmp_path, h={"url": url})
        first, second, third = await tool_results(
            mesh, keys, tmp_path, CALL, CALL, CALL, mcp_servers=("h",), mcp_config_file=file
        )
    assert text(first).startswith("MCP_SERVER_LOST: ")
    assert text(second).startswith("MCP_SERVER_UNAVAILABLE: the call was not made: it could not be reached")
    assert text(third) == text(second)


async def test_a_lost_run_does_not_wait_for_a_silent_server(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    asked, is_over = asyncio.Event(), asyncio.Event()

    async def answer(_message: dict[str, Any], _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await is_over.wait()

    mesh.answers.append(calling(("c", *CALL)))
    mesh.queue_run(mcp_servers=("h",))
    async with site(answer, []) as url:
        file = config(tmp_path, h={"url": url, "call_timeout_seconds": 600})
        async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=file, heartbeat_share=OFTEN):
            await asked.wait()
            mesh.lease_lost = True
            await eventually(lambda: not os.listdir(tmp_path / "work"))
        is_over.set()
    assert mesh.messages(RESULT) == []
