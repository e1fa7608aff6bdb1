"""Requests that no HTTP client would send."""

import asyncio

from tests.support.console.running_console import RunningConsole


async def send_raw(console: RunningConsole, request: bytes) -> tuple[int, bytes]:
    """Send the bytes, and return the status of the answer with all that came until the server closed."""
    host, _, port = console.host.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return (int(answer.split(b" ", 2)[1]) if answer else 0), answer


def request(method: str, path: str, *headers: str, version: str = "HTTP/1.1", body: bytes = b"") -> bytes:
    """Return the bytes of a request that closes its connection."""
    lines = (f"{method} {path} {version}", *headers, "connection: close", "", "")
    return "\r\n".join(lines).encode("latin-1") + body
