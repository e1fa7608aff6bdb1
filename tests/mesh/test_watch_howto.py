"""The commands and the program of docs/howto/watch.md work unchanged."""

import json
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell

SET_UP, WATCH, INTERRUPT, HTTP = typed("docs/howto/watch.md")
(PROGRAM,) = typed("docs/howto/watch.md", "python")
TENANT = "page-of-watch"


@pytest.mark.usefixtures("gateway")
async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path) -> None:
    async def enter(commands: str, session_id: str = "") -> str:
        named = commands.replace("acme", TENANT).replace("ses_…", session_id)
        return await shell(f"export SPAWNMESH_TENANT={TENANT}\n{named}", stack, tmp_path)

    await enter(SET_UP)
    (session,) = json.loads(await enter("spawnmesh sessions --json"))["sessions"]
    session_id = session["session_id"]
    streamed = await enter(HTTP, session_id)
    assert '"draft_delta"' in streamed
    ending = f"{INTERRUPT}\nspawnmesh wait ses_… || true\nspawnmesh kill ses_…"
    watched = await enter(
        f"{WATCH.strip()} > {tmp_path}/watched.txt &\n{ending}\nwait\ncat {tmp_path}/watched.txt", session_id
    )
    assert "INTERRUPTED" in watched
    assert "1 2 3 4 5" in watched
    assert "CLOSED" in watched


async def test_program_shows_the_answer_and_the_states(stack: Stack, tmp_path: Path) -> None:
    tenant = f"{TENANT}-2"
    await shell(f"spawnmesh tenant create {tenant}", stack, tmp_path)
    script = tmp_path / "watch.py"
    script.write_text(PROGRAM)
    token = stack.client_token(tenant)
    printed = await shell(f"python {script}", stack, tmp_path, SPAWNMESH_TOKEN=token)
    assert "You said: Say hello." in printed
    assert printed.index("You said: Say hello.") < printed.index("RUN SUCCEEDED") < printed.index("CLOSED")
