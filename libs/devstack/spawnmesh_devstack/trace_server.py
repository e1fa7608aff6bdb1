"""Serve the recorded traces by their ids, as backends of traces do.

The file has the traces of all tenants, and other people may use this machine. So a reader proves
that it may read the file with the headers.
"""

import asyncio
import os
import re
import secrets
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path

from aiohttp import web
from spawnmesh_runtime.otlp_json import traces_json

from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.span_file import load_trace

_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_AUTHORIZATION = "Authorization"
_HEADERS_NAME = "trace-reader.headers"
_SECRET_BYTES = 32
_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TraceAccess:
    """The way to the traces of a mesh."""

    port: int
    headers_file: Path

    def variables(self) -> dict[str, str]:
        """Return the settings of a console that reads these traces, without their prefix."""
        url = f"http://{LOOPBACK}:{self.port}/traces/{{trace_id}}"
        return {"TRACES_URL": url, "TRACES_HEADERS_FILE": str(self.headers_file)}


def make_headers(folder: Path) -> Path:
    """Write the headers of those who may read traces into a file of the folder (0600), and return
    it.
    """
    file = folder / _HEADERS_NAME
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{_AUTHORIZATION}: Bearer {secrets.token_urlsafe(_SECRET_BYTES)}\n")
    return file


def authorization_in(headers_file: Path) -> str:
    """Return the value of the header that readers send."""
    return headers_file.read_text().partition(":")[2].strip()


async def start_trace_server(port: int, file: Path, authorization: str) -> web.AppRunner:
    """Serve on loopback, to readers with this header, until the returned runner is cleaned up."""
    expected = authorization.encode()

    async def trace(request: web.Request) -> web.Response:
        sent = request.headers.get(_AUTHORIZATION, "").encode(errors="surrogateescape")
        if not compare_digest(sent, expected):
            return web.Response(status=401)
        trace_id = request.match_info["trace_id"]
        if not _TRACE_ID.fullmatch(trace_id):
            return web.Response(status=400)
        found = await asyncio.to_thread(load_trace, file, trace_id)
        if not found.resource_spans:
            return web.Response(status=404)
        return web.Response(body=await asyncio.to_thread(traces_json, found), content_type="application/json")

    app = web.Application()
    app.router.add_get("/traces/{trace_id}", trace)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, port).start()
    return runner
