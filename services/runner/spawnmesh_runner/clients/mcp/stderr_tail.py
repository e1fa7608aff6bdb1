"""The end of what an MCP server writes to its standard error: it says why the server ended."""

import asyncio
from asyncio import StreamReader
from collections.abc import Iterable

from spawnmesh_core.invisible_text import replace_invisible
from spawnmesh_core.secrets import mask_text

from spawnmesh_runner.clients.mcp.credentials import redact_secrets

_KEPT_BYTES = 8 * 1024
_SHOWN_LINES = 5
_SHOWN_LINE_CHARACTERS = 200
_CHUNK_BYTES = 64 * 1024
_DRAIN_SECONDS = 0.2


class StderrTail:
    """The last bytes of a standard error. Earlier ones are dropped."""

    def __init__(self) -> None:
        self._data = b""

    async def follow(self, stream: StreamReader) -> None:
        """Read until the stream ends. A server would stop at a full pipe."""
        while chunk := await stream.read(_CHUNK_BYTES):
            self._data = (self._data + chunk)[-_KEPT_BYTES:]

    async def drain(self, stream: StreamReader) -> None:
        """Read what a server that has ended left behind.

        A process of its own may keep the stream open: wait for a moment only.
        """
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.follow(stream)
        except TimeoutError:
            pass

    def shown(self, secrets: Iterable[str]) -> str:
        """Return the last lines as one line, without secrets and invisible characters."""
        text = mask_text(redact_secrets(self._data.decode(errors="replace"), secrets))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        shown = (replace_invisible(line)[:_SHOWN_LINE_CHARACTERS] for line in lines[-_SHOWN_LINES:])
        return " | ".join(shown)
