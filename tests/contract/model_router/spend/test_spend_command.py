"""`spawnmesh spend`, and `mesh.models.spend`, against the running service."""

import json
from datetime import timedelta

import pytest
import spawnmesh_client
from spawnmesh_model_router.domain.spend import midnight

from tests.support.commands import Commands
from tests.support.model_router.budget_recorder import priced
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import chat, sse
from tests.support.model_router.spending import as_agent, put_spend, spent, today
from tests.support.waiting import DAY, time_left_in

pytestmark = pytest.mark.usefixtures("quick_spend")


@pytest.fixture
async def router(world: World) -> Router:
    await time_left_in(DAY)
    world.provider.on("one", sse(*chat("one")))
    return await world.router(priced(world))


@pytest.fixture
async def filled(world: World, router: Router) -> Router:
    """A router whose tenant has spent 0.00003 today, and more before."""
    assert (await as_agent(router, "ann").generate(world.ref("one"), strict=True)).text
    await put_spend(world, router.tenant, 6, ("ann", "p/two"), cost_micros=1_500_000)
    await put_spend(world, router.tenant, 6, ("", "p/one"), ("*", "p/two"), cost_micros=250_000)
    await put_spend(world, router.tenant, 7, ("ben", "p/three"), cost_micros=8_000_000)
    await spent(router, 5)
    return router


async def run(commands: Commands, router: Router, *arguments: str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of the output with single spaces, and the errors."""
    env = {
        "SPAWNMESH_SESSION_TARGET": "127.0.0.1:1",
        "SPAWNMESH_MODEL_ROUTER_TARGET": router.target,
        "SPAWNMESH_SIGNING_KEY_FILE": str(router.keys / "client.pem"),
    }
    code, out, err = await commands.run("--tenant", router.tenant, "spend", *arguments, env=env)
    return code, [" ".join(line.split()) for line in out.splitlines()], err


async def test_ListSpend__command_has_a_row_for_each_agent_dearest_first(
    commands: Commands, filled: Router
) -> None:
    assert await run(commands, filled) == (
        0,
        [
            "agent calls input of it cached output cost USD share",
            "ann 2 21 8 6 1.50003 75%",
            "direct calls 1 1 0 1 0.25 12%",
            "further agents 1 1 0 1 0.25 12%",
            "total 4 23 8 8 2.00003 100%",
        ],
        "",
    )


async def test_ListSpend__command_has_a_row_for_each_model_or_day(
    commands: Commands, world: World, filled: Router
) -> None:
    _, lines, _ = await run(commands, filled, "--by", "model", "--days", "1")
    assert lines[1:] == [f"{world.ref('one')} 1 20 8 5 0.00003 100%"]
    _, lines, _ = await run(commands, filled, "--by", "day", "--days", "8")
    first, second, last = (today() - timedelta(days=ago) for ago in (7, 6, 0))
    assert lines[1:] == [
        f"{first} 1 1 0 1 8.00 80%",
        f"{second} 3 3 0 3 2.00 20%",
        f"{last} 1 20 8 5 0.00003 <1%",
        "total 5 24 8 9 10.00003 100%",
    ]


async def test_ListSpend__command_shows_the_budget_of_today(
    commands: Commands, world: World, filled: Router
) -> None:
    await filled.prepare(1, max_spend_micros_per_day=2_000_000)
    assert (await filled.generate(world.ref("one"), strict=True)).text
    code, lines, _ = await run(commands, filled, "--days", "1")
    assert code == 0
    assert lines[-1].startswith("today: 0.00003 of 2.00 USD spent (<1%); it renews at 20")
    _, (line,), _ = await run(commands, filled, "--json", "--by", "day", "--days", "90")
    document = json.loads(line)
    assert (document["currency"], document["budget"]["limit_micros"]) == ("USD", "2000000")
    assert len(document["rows"]) == 3


async def test_ListSpend__command_says_that_nothing_was_spent(commands: Commands, router: Router) -> None:
    assert await run(commands, router) == (0, ["nothing was spent"], "")


@pytest.mark.parametrize("arguments", [("--days", "0"), ("--days", "91"), ("--by", "week")])
async def test_wrong_options_are_refused(
    commands: Commands, router: Router, arguments: tuple[str, str]
) -> None:
    code, lines, err = await run(commands, router, *arguments)
    assert (code, lines) == (2, [])
    assert arguments[0] in err


async def test_ListSpend__client_reads_all_pages(world: World, router: Router) -> None:
    """More rows than a page has."""
    for number in range(21):
        names = [(f"agent-{agent}", f"p/{number}") for agent in range(50)]
        await put_spend(world, router.tenant, 3, *names)
    targets = {"session": "127.0.0.1:1", "model-router": router.target}
    async with spawnmesh_client.connect(targets=targets, token=router.token) as mesh:
        spending = await mesh.models.spend(start_time=timedelta(days=5))
        assert len({(row.agent_id, row.model) for row in spending.rows}) == 21 * 50
        assert spending.rows[0].day_time == midnight(today() - timedelta(days=3))
        (total,) = (await mesh.models.spend(group_by=["day"])).rows
        assert (total.call_count, total.agent_id, total.model) == (21 * 50, "", "")
        assert (spending.budget, spending.currency) == (None, "USD")
        await router.prepare(1, max_spend_micros_per_day=7)
        spending = await mesh.models.spend(end_time=timedelta(days=4))
        assert spending.rows == ()
        assert spending.budget is not None
        assert (spending.budget.limit_micros, spending.budget.spent_micros) == (7, 0)
        with pytest.raises(ValueError, match="it is one of DAY, AGENT, MODEL"):
            await mesh.models.spend(group_by=["week"])
        with pytest.raises(spawnmesh_client.InvalidRequest):
            await mesh.models.spend(start_time=timedelta(days=91))
