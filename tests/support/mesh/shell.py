"""Run the commands of a page as a person does."""

import asyncio
import os
from pathlib import Path

from spawnmesh_devstack.stack import Stack

ROOT = Path(__file__).resolve().parents[3]


async def shell(script: str, stack: Stack, tmp_path: Path, directory: Path = ROOT, **environment: str) -> str:
    """Run the script as a person does, in the checkout or another directory; return its output."""
    env = {
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SPAWNMESH_DATA": str(stack.data_dir),
        **environment,
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", script, cwd=directory, env=env,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()
