"""The programs of docs/howto/clients.md work unchanged, one after the other."""

import textwrap
from pathlib import Path
from uuid import uuid4

from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell

BLOCKS = typed("docs/howto/clients.md", "python")
AROUND = """
import asyncio, json, tempfile
from datetime import UTC, datetime
from spawnmesh_client import connect
from standardwebhooks import Webhook

is_new, enqueue = lambda message_id: True, print

def signed(secret, body):
    at = datetime.now(UTC)
    signature = Webhook(secret).sign("evt_1", at, body)
    stamp = str(int(at.timestamp()))
    return {{"webhook-id": "evt_1", "webhook-timestamp": stamp, "webhook-signature": signature}}

async def main():
    async with connect() as mesh:
        with tempfile.TemporaryDirectory() as folder:
{parts}
            ended = {{"type": "run.ended", "timestamp": datetime.now(UTC).isoformat(),
                     "data": {{"session_id": "ses_1", "run_id": "run_1"}}}}
            print(receive(signed(secret, json.dumps(ended)), json.dumps(ended).encode()), receive({{}}, b""))

asyncio.run(main())
"""


async def test_programs_of_the_page_work_against_a_mesh(stack: Stack, tmp_path: Path) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    retain = "--set retain_on_session_keep=true"
    await shell(f"spawnmesh tenant create {tenant}", stack, tmp_path)
    await shell(f"spawnmesh tenant update {tenant} {retain}", stack, tmp_path)
    token = stack.client_token(tenant)
    programs, parts = [], []
    for block in BLOCKS:
        (programs if "connect()" in block else parts).append(block)
    whole, blocking = programs
    assert await typed_as_program(whole, stack, tmp_path, token)
    assert "RUN SUCCEEDED\nCLOSED None" in await typed_as_program(blocking, stack, tmp_path, token)
    around = AROUND.format(parts=textwrap.indent("\n".join(parts), " " * 12))
    printed = await typed_as_program(around, stack, tmp_path, token)
    assert "True {" in printed, "the closed session refuses the message"
    assert "b'hello'" in printed
    assert "42\nSAY HELLO.\n" in printed, "the answers of the mesh in memory"
    assert printed.count(" CLOSED None") == 1
    assert "'clerk'" in printed
    assert " SPAWNED ses_" in printed, "the history of the schedule"
    assert printed.endswith("ses_1 run_1\n204 401\n"), "the receiver of messages"


async def typed_as_program(text: str, stack: Stack, folder: Path, token: str) -> str:
    (folder / "program.py").write_text(text)
    return await shell(f"python {folder / 'program.py'}", stack, folder, SPAWNMESH_TOKEN=token)
