"""The commands of docs/howto/http.md work unchanged, and print what the page says."""

import json
import re
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.mesh.shell import ROOT, shell

PAGE = (ROOT / "docs" / "howto" / "http.md").read_text()
BLOCKS = re.findall(r"^```(sh|json)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SET_UP, SPAWN, WATCH, REFUSED = (text for language, text in BLOCKS if language == "sh")
(REFUSAL,) = (json.loads(text) for language, text in BLOCKS if language == "json")


@pytest.mark.usefixtures("gateway")
async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path) -> None:
    marked = f"cd {tmp_path}\n{SET_UP}\n{SPAWN}\necho; echo ===\n{WATCH}\necho ===\n{REFUSED}"
    printed = await shell(marked, stack, tmp_path)
    spawned, watched, refused = printed.split("===\n")
    assert "RUN_STATE_SUCCEEDED" in spawned
    assert spawned.count('"label":"by-http"') == 3  # Spawned, waited for and listed.
    events = [line for line in watched.splitlines() if line.startswith("data: ")]
    assert "SESSION_EVENT_KIND_CLOSED" in events[-1]
    assert json.loads(refused) == REFUSAL
