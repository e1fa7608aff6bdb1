"""`spawnmesh router`, against the running service."""

import json
import re
from dataclasses import dataclass

import pytest

from tests.support.commands import Commands
from tests.support.model_router.fixtures import CANARY, Router, World
from tests.support.model_router.provider import RATE_LIMITED


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", RATE_LIMITED)
    return world


@pytest.fixture
async def router(world: World) -> Router:
    config = world.config(blind_model_policy="ROUTE_AROUND")
    config["models"][world.ref("one")]["thinking"] = {"low": "low", "high": "high"}
    return await world.router(config)


@dataclass(frozen=True, slots=True)
class RouterCommand:
    """`spawnmesh router …` for the tenant of the running service."""

    commands: Commands
    router: Router

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        env = {
            "SPAWNMESH_SESSION_TARGET": "127.0.0.1:1",
            "SPAWNMESH_MODEL_ROUTER_TARGET": self.router.target,
            "SPAWNMESH_SIGNING_KEY_FILE": str(self.router.keys / "client.pem"),
        }
        return await self.commands.run("--tenant", self.router.tenant, "router", *arguments, env=env)


@pytest.fixture
def command(commands: Commands, router: Router) -> RouterCommand:
    return RouterCommand(commands, router)


def row(table: str, name: str) -> str:
    """The one line of a table that begins with this name."""
    [line] = [line for line in table.splitlines() if line.startswith(name)]
    return " ".join(line.split())


async def test_models__are_listed_with_what_they_can_do(
    command: RouterCommand, router: Router, world: World
) -> None:
    code, out, err = await command("models")
    assert (code, err) == (0, "")
    expected = f"{world.ref('one')} (primary) openai_compatible chat 128,000 4,096 images, tools low, high"
    assert row(out, world.ref("one")) == expected
    assert row(out, world.ref("two")).endswith("images, tools fast")
    _, out, _ = await command("models", "--json")
    [one] = [model for model in json.loads(out)["models"] if model["model"] == world.ref("one")]
    assert one["thinking_levels"] == ["THINKING_LEVEL_LOW", "THINKING_LEVEL_HIGH"]


async def test_explain__shows_who_would_be_asked_and_who_not(
    command: RouterCommand, router: Router, world: World
) -> None:
    await router.generate(world.ref("one"), strict=True)
    asked = len(world.provider.bodies)
    arguments = (
        "explain",
        "fast",
        "--fallback",
        world.ref("blind"),
        "--image",
        "--tools",
        "--thinking",
        "high",
    )
    code, out, err = await command(*arguments)
    assert (code, err) == (0, "")
    assert row(out, world.ref("two")) == f"{world.ref('two')} ready sent"
    assert row(out, world.ref("blind")) == (
        f"{world.ref('blind')} incapable routed_around cannot take images and tools"
    )
    assert row(out, world.ref("one")).startswith(f"{world.ref('one')} cooling rate_limit 20")
    assert " tenant " in row(out, world.ref("one"))
    assert row(out, world.ref("one")).endswith("after failures of this tenant's calls")
    assert len(world.provider.bodies) == asked
    _, out, _ = await command(*arguments, "--strict", "--json")
    assert [one["verdict"] for one in json.loads(out)["candidates"]] == ["VERDICT_READY"] + [
        "VERDICT_NOT_NEEDED"
    ] * 2


async def test_explain__prints_the_thinking_level_and_unknown_models(
    command: RouterCommand, router: Router, world: World
) -> None:
    _, out, _ = await command("explain", "--strict", "--thinking", "medium")
    assert row(out, world.ref("one")) == f"{world.ref('one')} ready low"
    code, out, err = await command("explain", "nobody/nothing")
    assert (code, out) == (1, "")
    assert err.startswith("error: UNKNOWN_MODEL: ")
    assert (await command("explain", "--thinking", "lots"))[0] == 2


async def test_health_and_clear__show_a_rest_and_end_it(
    command: RouterCommand, router: Router, world: World
) -> None:
    await router.generate(world.ref("one"), strict=True)
    code, out, err = await command("health")
    assert (code, err) == (0, "")
    rest = row(out, world.scripted)
    assert rest.startswith(
        f"{world.scripted} 1 of 1 readable model {world.ref('one')} tenant {router.tenant} 20"
    )
    times = re.findall(r"20\S+ \S+", rest)
    assert len(times) == 2
    assert times[0] < times[1], "since and until"
    assert rest.endswith("rate_limit 1")
    assert row(out, world.anthropic) == f"{world.anthropic} 1 of 1 readable nothing"
    assert CANARY not in out
    _, out, _ = await command("health", "--json")
    [one] = [one for one in json.loads(out)["providers"] if one["provider"] == world.scripted]
    assert one["cooldowns"][0]["target"] == world.ref("one")

    assert await command("clear", "model", world.ref("one")) == (
        0,
        f"{world.ref('one')} may be called again\n",
        "",
    )
    assert (await command("clear", "model", world.ref("one")))[1] == f"{world.ref('one')} had no cooldown\n"
    assert await router.explain(world.ref("one"), strict=True) == [("one", "READY")]


async def test_health_and_clear__show_an_operator_the_tenants_and_end_the_rest_of_one(
    command: RouterCommand, router: Router, world: World
) -> None:
    other = await router.for_tenant(f"{router.tenant}-too")
    for caller in (router, other):
        await caller.generate(world.ref("one"), strict=True)
    _, out, _ = await command("health")
    assert "all tenants" in out
    assert other.tenant not in out
    _, out, _ = await command("health", "--all-tenants")
    assert f"tenant {other.tenant}" in out
    clear = ("clear", "model", world.ref("one"), "--tenant")
    assert (await command(*clear, other.tenant))[1] == f"{world.ref('one')} may be called again\n"
    assert (await command(*clear, other.tenant))[1] == f"{world.ref('one')} had no cooldown\n"
    assert f"tenant {router.tenant}" in (await command("health", "--all-tenants"))[1]


async def test_clear__of_what_is_not_there(command: RouterCommand) -> None:
    code, _, err = await command("clear", "provider", "nobody")
    assert (code, err.startswith("error: NOT_FOUND: ")) == (1, True)
    assert (await command("clear", "everything", "nobody"))[0] == 2
