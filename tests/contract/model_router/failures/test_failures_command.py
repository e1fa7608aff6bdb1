"""`spawnmesh router failures`, and `mesh.models.failures`, against the running service."""

import json
from datetime import timedelta

import pytest
import spawnmesh_client
from spawnmesh_client.failures import FailureReason

from tests.support.commands import Commands
from tests.support.model_router.failures import put_failures, this_hour
from tests.support.model_router.fixtures import Router, World
from tests.support.waiting import HOUR, time_left_in


@pytest.fixture
async def router(world: World) -> Router:
    await time_left_in(HOUR)
    return await world.router()


@pytest.fixture
async def filled(world: World, router: Router) -> Router:
    """A router whose tenant had failures in this hour, and more before."""
    await put_failures(world, router.tenant, 0, ("p/one", "TIMEOUT"))
    await put_failures(
        world, router.tenant, 3, ("p/one", "RATE_LIMIT"), ("p/two", "TIMEOUT"), failure_count=4
    )
    await put_failures(world, router.tenant, 40, ("p/three", "BILLING"), failure_count=1000)
    return router


async def run(commands: Commands, router: Router, *arguments: str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of the output with single spaces, and the errors."""
    env = {
        "SPAWNMESH_SESSION_TARGET": "127.0.0.1:1",
        "SPAWNMESH_MODEL_ROUTER_TARGET": router.target,
        "SPAWNMESH_SIGNING_KEY_FILE": str(router.keys / "client.pem"),
    }
    command = ("--tenant", router.tenant, "router", "failures", *arguments)
    code, out, err = await commands.run(*command, env=env)
    return code, [" ".join(line.split()) for line in out.splitlines()], err


async def test_ListFailures__command_has_a_row_for_each_reason_most_first(
    commands: Commands, filled: Router
) -> None:
    assert await run(commands, filled) == (
        0,
        [
            "reason failed calls another model called request ended",
            "timeout 5 0 5",
            "rate_limit 4 0 4",
            "total 9 0 9",
        ],
        "",
    )


async def test_ListFailures__command_has_a_row_for_each_model_or_hour(
    commands: Commands, filled: Router
) -> None:
    _, lines, _ = await run(commands, filled, "--by", "model", "--hours", "168")
    assert lines[1:] == ["p/three 1,000 0 1,000", "p/one 5 0 5", "p/two 4 0 4", "total 1,009 0 1,009"]
    _, lines, _ = await run(commands, filled, "--by", "hour", "--hours", "4")
    shown = [
        (this_hour() - timedelta(hours=ago)).astimezone().strftime("%Y-%m-%d %H:%M:%S") for ago in (3, 0)
    ]
    assert lines[1:] == [f"{shown[0]} 8 0 8", f"{shown[1]} 1 0 1", "total 9 0 9"]
    _, lines, _ = await run(commands, filled, "--hours", "1")
    assert lines[1:] == ["timeout 1 0 1"]
    _, (line,), _ = await run(commands, filled, "--json", "--hours", "1")
    (row,) = json.loads(line)["rows"]
    assert (row["reason"], row["failure_count"]) == ("FAILOVER_REASON_TIMEOUT", "1")


async def test_ListFailures__command_says_that_nothing_failed(commands: Commands, router: Router) -> None:
    assert await run(commands, router) == (0, ["no call failed in the last 24 hours"], "")
    assert await run(commands, router, "--hours", "1") == (0, ["no call failed in the last hour"], "")


@pytest.mark.parametrize("arguments", [("--hours", "0"), ("--hours", "169"), ("--by", "week")])
async def test_wrong_options_are_refused(
    commands: Commands, router: Router, arguments: tuple[str, str]
) -> None:
    code, lines, err = await run(commands, router, *arguments)
    assert (code, lines) == (2, [])
    assert arguments[0] in err


async def test_ListFailures__client_reads_all_pages(world: World, router: Router) -> None:
    """More rows than a page has."""
    for number in range(21):
        names = [(f"p/{model}", "TIMEOUT") for model in range(50)]
        await put_failures(world, router.tenant, number + 1, *names)
    targets = {"session": "127.0.0.1:1", "model-router": router.target}
    async with spawnmesh_client.connect(targets=targets, token=router.token) as mesh:
        rows = await mesh.models.failures()
        assert len({(row.hour_time, row.model) for row in rows}) == 21 * 50
        assert rows[0].hour_time == this_hour() - timedelta(hours=21)
        (total,) = await mesh.models.failures(group_by=["reason"])
        assert (total.reason, total.model, total.hour_time) == (FailureReason.TIMEOUT, "", None)
        assert (total.failure_count, total.failover_count, total.end_count) == (21 * 50, 0, 21 * 50)
        (hour,) = await mesh.models.failures(start_time=timedelta(hours=2), group_by=["HOUR"])
        assert (hour.reason, hour.failure_count) == (None, 50)
        with pytest.raises(ValueError, match="it is one of HOUR, MODEL, REASON"):
            await mesh.models.failures(group_by=["week"])
        with pytest.raises(spawnmesh_client.InvalidRequest):
            await mesh.models.failures(start_time=timedelta(hours=169))
