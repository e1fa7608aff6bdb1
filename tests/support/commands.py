"""Run `spawnmesh` often, and import it once."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from spawnmesh_devstack.forks import ForkServer

SCRIPT = Path(sys.executable).with_name("spawnmesh")
_ENDED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Commands:
    """Run the installed `spawnmesh` with exactly the given environment."""

    fork_server: ForkServer

    async def run(self, *arguments: str, env: Mapping[str, str], given: str = "") -> tuple[int, str, str]:
        """Run a command and return exit code, output and errors."""
        with TemporaryDirectory(prefix="spawnmesh-command-") as name:
            inp, out, err = (Path(name) / stream for stream in ("in", "out", "err"))
            inp.write_text(given)
            streams = os.open(inp, os.O_RDONLY), _created(out), _created(err)
            try:
                fork = self.fork_server.start([str(SCRIPT), *arguments], env, streams)
            finally:
                for stream in streams:
                    os.close(stream)
            async with asyncio.timeout(_ENDED_SECONDS):
                code = await fork.wait()
            return code, out.read_text(), err.read_text()


def _created(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT)
