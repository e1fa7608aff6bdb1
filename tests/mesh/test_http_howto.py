"""The commands of docs/howto/http.md work unchanged, and print what the page says."""

import json
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell

SET_UP, SPAWN, LIST, REFUSED = typed("docs/howto/http.md")
(REFUSAL,) = typed("docs/howto/http.md", "json")


@pytest.mark.usefixtures("gateway")
async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path) -> None:
    long = SPAWN.replace(
        "Say hello.", f"Say {'hello, ' * 200}."
    )  # The answer, which repeats it, takes longer.
    marked = f"cd {tmp_path}\n{SET_UP}\n{long}\necho; echo ===\n{LIST}\necho; echo ===\n{REFUSED}"
    printed = await shell(marked, stack, tmp_path)
    streamed, listed, refused = printed.split("===\n")
    messages = [
        json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line[:5] == "data:"
    ]
    said = "".join(one["draft_delta"].get("text", "") for one in messages if "draft_delta" in one)
    assert said.count("hello") > 10, "the answer came while the model gave it"
    assert "SESSION_EVENT_KIND_CLOSED" in str(messages[-1])
    assert "RUN_STATE_SUCCEEDED" in listed
    assert listed.count('"label":"by-http"') == 2  # Waited for and listed.
    assert len((SET_UP + SPAWN).splitlines()) < 15
    assert json.loads(refused) == json.loads(REFUSAL)
