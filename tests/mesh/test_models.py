"""The options of a command reach the provider: through every process, in the provider's format."""

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.commands import Commands
from tests.support.model_router.provider import LoopbackProvider
from tests.support.model_router.responses import COMPLETED, called, reasoned, responses, said

PNG = b"\x89PNG\r\n\x1a\nnot really"
MODEL = "loopback/thinker"


@dataclass(frozen=True)
class Terminal:
    """The command `spawnmesh` for a tenant of the mesh."""

    commands: Commands
    data: Path
    tenant: str

    async def type(self, *arguments: str) -> str:
        """Run a command that must succeed, and return what it prints."""
        mesh = ("--data", str(self.data), "--tenant", self.tenant)
        code, printed, errors = await self.commands.run(*mesh, *arguments, env=os.environ)
        assert code == 0, printed + errors
        return printed


@pytest.fixture
def terminal(commands: Commands, stack: Stack) -> Terminal:
    return Terminal(commands, stack.data_dir, f"t-{uuid4().hex[:12]}")


async def test_spawn_with_an_image_and_a_thinking_level_reaches_the_provider(
    terminal: Terminal, provider: LoopbackProvider, tmp_path: Path
) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(PNG)
    calls_a_tool = [
        *reasoned("Look first.", "gAAA"),
        *called("call_1", "list_files", "{}", place=1),
        COMPLETED,
    ]
    provider.on("thinker", responses(*calls_a_tool), responses(*said("A cat."), COMPLETED))
    await terminal.type("tenant", "create", terminal.tenant)
    task = ["spawn", "What is in cat.png?", "--attach", str(picture), "--model", MODEL, "--thinking", "high"]
    assert "\nA cat.\n" in await terminal.type(*task, "--wait")  # Behind it are states, if there are some.

    first, second = provider.bodies
    assert [body["reasoning"] for body in (first, second)] == [{"effort": "xhigh"}] * 2
    [request] = [item for item in first["input"] if item.get("role") == "user" and "cat.png?" in str(item)]
    assert request["content"][-1]["type"] == "input_image"
    kinds = [item["type"] for item in second["input"]]
    assert kinds[-3:] == ["reasoning", "function_call", "function_call_output"]
    assert second["input"][-3]["encrypted_content"] == "gAAA"
    [line] = [line for line in (await terminal.type("router", "models")).splitlines() if MODEL in line]
    assert "low, high" in line
    explained = await terminal.type("router", "explain", MODEL, "--strict", "--image", "--thinking", "medium")
    assert "ready" in explained
