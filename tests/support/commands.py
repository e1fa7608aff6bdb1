"""Run `spawnmesh` often, and import it once."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

STARTER = Path(__file__).with_name("command_starter.py")
_STARTED_SECONDS, _ENDED_SECONDS = 60.0, 60.0


@dataclass(frozen=True, slots=True)
class Commands:
    """Run `spawnmesh` with exactly the given environment."""

    socket: Path

    async def run(self, *arguments: str, env: Mapping[str, str], given: str = "") -> tuple[int, str, str]:
        """Run a command and return exit code, output and errors."""
        with TemporaryDirectory(prefix="spawnmesh-command-") as name:
            folder = Path(name)
            for stream, text in (("in", given), ("out", ""), ("err", "")):
                (folder / stream).write_text(text)
            reader, writer = await asyncio.open_unix_connection(self.socket)
            request = {"arguments": arguments, "env": dict(env), "folder": name}
            writer.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(_ENDED_SECONDS):
                code = int(await reader.readline())
            writer.close()
            await writer.wait_closed()
            return code, (folder / "out").read_text(), (folder / "err").read_text()


@asynccontextmanager
async def open_commands() -> AsyncIterator[Commands]:
    """Start the starter process for the block."""
    with TemporaryDirectory(prefix="spawnmesh-starter-") as name:
        socket = Path(name) / "socket"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(STARTER),
            str(socket),
            env={},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_STARTED_SECONDS):
                assert await process.stdout.readline() == b"ready\n"
            yield Commands(socket)
        finally:
            await process.communicate(b"")  # The end of its input.
