"""The programs of docs/howto/clients.md work unchanged, one after the other."""

import re
import textwrap
from pathlib import Path
from uuid import uuid4

from spawnmesh_devstack.stack import Stack

from tests.support.mesh.shell import ROOT, shell

PAGE = (ROOT / "docs" / "howto" / "clients.md").read_text()
WHOLE, *PARTS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
AROUND = """
import asyncio, tempfile
from spawnmesh_client import connect

async def main():
    async with connect() as mesh:
        with tempfile.TemporaryDirectory() as folder:
{parts}

asyncio.run(main())
"""


async def test_programs_of_the_page_work_against_a_mesh(stack: Stack, tmp_path: Path) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    retain = "--set retain_on_session_keep=true"
    await shell(f"spawnmesh tenant create {tenant}", stack, tmp_path)
    await shell(f"spawnmesh tenant update {tenant} {retain}", stack, tmp_path)
    token = stack.client_token(tenant)
    asynchronous = [part for part in PARTS if "await " in part]
    (blocking,) = [part for part in PARTS if "sync.connect" in part]
    assert len(asynchronous) == 14
    (tmp_path / "whole.py").write_text(WHOLE)
    (tmp_path / "parts.py").write_text(
        AROUND.format(parts=textwrap.indent("\n".join(asynchronous), " " * 12))
    )
    assert await shell(f"python {tmp_path / 'whole.py'}", stack, tmp_path, SPAWNMESH_TOKEN=token)
    (tmp_path / "blocking.py").write_text(blocking)
    printed = await shell(f"python {tmp_path / 'blocking.py'}", stack, tmp_path, SPAWNMESH_TOKEN=token)
    assert "RUN SUCCEEDED\nCLOSED None" in printed
    printed = await shell(f"python {tmp_path / 'parts.py'}", stack, tmp_path, SPAWNMESH_TOKEN=token)
    assert "True {" in printed, "the closed session refuses the message"
    assert "b'hello'" in printed
    assert "42\nSAY HELLO.\n" in printed, "the answers of the mesh in memory"
    assert printed.count(" CLOSED None") == 1
    assert "'clerk'" in printed
    assert " SPAWNED ses_" in printed, "the history of the schedule"
