"""The commands of docs/howto/http.md work unchanged, and print what the page says."""

import json
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell

SET_UP, SPAWN, WATCH, REFUSED = typed("docs/howto/http.md")
(REFUSAL,) = typed("docs/howto/http.md", "json")


@pytest.mark.usefixtures("gateway")
async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path) -> None:
    marked = f"cd {tmp_path}\n{SET_UP}\n{SPAWN}\necho; echo ===\n{WATCH}\necho ===\n{REFUSED}"
    printed = await shell(marked, stack, tmp_path)
    spawned, watched, refused = printed.split("===\n")
    assert "RUN_STATE_SUCCEEDED" in spawned
    assert spawned.count('"label":"by-http"') == 3  # Spawned, waited for and listed.
    events = [line for line in watched.splitlines() if line.startswith("data: ")]
    assert "SESSION_EVENT_KIND_CLOSED" in events[-1]
    assert json.loads(refused) == json.loads(REFUSAL)
