"""What a person asks for at the terminal reaches the provider: through every process, in the provider's own words."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_devstack.stack import open_stack

from tests.support.model_router.provider import LoopbackProvider, open_loopback_provider
from tests.support.model_router.responses import COMPLETED, called, reasoned, responses, said

PNG = b"\x89PNG\r\n\x1a\nnot really"
SIZE = {"context_window": 128_000, "max_output": 4096}


@dataclass(frozen=True)
class Terminal:
    """A mesh whose one provider is a loopback one, and the command that is pointed at it."""

    data: Path
    provider: LoopbackProvider

    async def type(self, *arguments: str) -> str:
        """What the command prints; it has to end well."""
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("spawnmesh")),
            *("--data", str(self.data), "--tenant", "acme"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
        return printed.decode()


def router_config(provider: LoopbackProvider) -> dict[str, Any]:
    """`thinker` is asked through responses and thinks by levels."""
    loopback = {"kind": "openai", "base_url": f"{provider.base_url}/v1", "credentials": ["env:LOOPBACK_KEY"]}
    levels = {"low": "low", "high": "xhigh"}
    thinker = {**SIZE, "vision": True, "api": "responses", "thinking": levels}
    return {
        "primary": "loopback/thinker",
        "providers": {"loopback": loopback},
        "models": {"loopback/thinker": thinker},
    }


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    with tempfile.TemporaryDirectory(prefix="spawnmesh-models-") as folder:
        async with open_loopback_provider() as provider:
            config, data = router_config(provider), Path(folder) / "data"
            async with open_stack(
                data, lambda _: None, router_config=config, environment={"LOOPBACK_KEY": "any"}
            ):
                yield Terminal(data, provider)


async def test_a_spawn_with_an_image_is_thought_about_as_hard_as_was_asked(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    looked = [*reasoned("Look first.", "gAAA"), *called("call_1", "list_files", "{}", place=1), COMPLETED]
    terminal.provider.on("thinker", responses(*looked), responses(*said("A cat."), COMPLETED))
    await terminal.type("tenant", "create", "acme")
    task = [
        "spawn",
        "What is in cat.png?",
        "--attach",
        str(tmp_path / "cat.png"),
        "--thinking",
        "high",
        "--wait",
    ]
    assert (await terminal.type(*task)).rstrip().endswith("A cat.")

    first, second = terminal.provider.bodies
    assert [body["reasoning"] for body in (first, second)] == [{"effort": "xhigh"}] * 2
    [asked] = [item for item in first["input"] if item.get("role") == "user" and "cat.png?" in str(item)]
    assert asked["content"][-1]["type"] == "input_image"
    kinds = [item["type"] for item in second["input"]]
    assert kinds[-3:] == ["reasoning", "function_call", "function_call_output"]
    assert second["input"][-3]["encrypted_content"] == "gAAA"
    assert "low, high" in await terminal.type("router", "models")
    assert "ready" in await terminal.type("router", "explain", "--image", "--thinking", "medium")
