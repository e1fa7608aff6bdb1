"""A session in a browser: its text as it comes, what a person does, and a console that breaks."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from spawnmesh_client.session import Session
from spawnmesh_client.views import RunState
from spawnmesh_devstack.stack import Stack

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.running_console import start_console
from tests.support.console.said import append, ended_session, said
from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

DRAFT = ".draft > .text"


def expect(*of: object) -> object:
    return browser_package("playwright.async_api").expect(*of)


async def counted(page: "Page", at_least: int) -> list[int]:
    """Return the numbers of the draft, once there are this many."""
    numbers: list[int] = []

    async def are_there() -> bool:
        texts = await page.locator(DRAFT).all_text_contents()
        numbers[:] = [int(number) for text in texts for number in text.split()]
        return len(numbers) > at_least

    await eventually(are_there, within_seconds=60)
    return numbers


def path_of(session: Session) -> str:
    return f"/sessions/{session.session_id}"


async def test_text_comes_live_and_an_interrupt_keeps_it(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await tenant.mesh.spawn("Count.", mode="SESSION", model="scripted/slow")
    page = await windows.open(path_of(session), tenant.token())
    numbers = await counted(page, 30)
    assert numbers[:-1] == [*range(1, len(numbers))]
    await expect(page.locator(".draft details")).to_have_attribute("open", "")
    thought = await page.locator(".draft details .text").text_content()
    assert thought
    await page.get_by_text("Interrupt", exact=True).click()
    await page.get_by_role("button", name="Interrupt the run").click()
    await expect(page.locator("h1 .state")).to_have_text("interrupted")
    await expect(page.locator(DRAFT)).to_have_count(0)
    [answer] = [entry.text async for entry in session.transcript() if entry.role == "ASSISTANT"]
    await expect(page.locator(".by-model > .text")).to_have_text(answer)
    await expect(page.locator(".by-model details .text")).to_have_text(thought)
    await page.get_by_label("Message to the session").fill("Say hello.")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#entries")).to_contain_text("You said: Say hello.")
    await expect(page.locator("h1 .state")).to_have_text("succeeded")


async def test_family_grows_with_each_child(windows: Windows, tenant: ConsoleTenant) -> None:
    """Without the time at which the page reads the whole family again: its clock stands still."""
    session = await ended_session(tenant.mesh)
    page = await windows.open(path_of(session), tenant.token(), has_clock=True)
    await page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=10))
    lanes = page.locator("#family .lanes > li")
    await expect(page.locator("#events")).to_contain_text("succeeded")
    await expect(lanes).to_have_count(0)  # It has no family.
    child = await tenant.mesh.spawn("Say hello.", label="first-child", parent=session.session_id)
    await expect(lanes).to_have_count(2)
    await child.result()
    await expect(lanes.nth(1)).to_contain_text("succeeded")


async def test_a_console_that_is_killed_loses_nothing_of_the_text(
    browser: "Browser", stack: Stack, tenant: ConsoleTenant
) -> None:
    """The browser connects again by itself, to a console that knows nothing of the one before."""
    console = await start_console(stack, stack.data_dir / "console-killed", "console-killed")
    session = await tenant.mesh.spawn("Count.", mode="SESSION", model="scripted/slow")
    async with AsyncExitStack() as exits:
        windows = Windows(browser, console, exits)
        page = await windows.open(path_of(session), tenant.token())
        before = await counted(page, 10)
        await stack.processes[console.name].kill()
        await expect(page.locator("#connection")).to_contain_text("being made again")
        await stack.restart(console.name)
        after = await counted(page, len(before) + 40)
        assert after[:-1] == [*range(1, len(after))], "nothing twice, and nothing missing"
        await expect(page.locator("#connection")).to_have_text("")
        await session.interrupt()
        await expect(page.locator(DRAFT)).to_have_count(0)
        await expect(page.locator(".by-model")).to_have_count(1)


async def test_a_stream_that_is_refused_is_made_again(windows: Windows, tenant: ConsoleTenant) -> None:
    """A browser gives up after any answer but a stream; the page does not."""
    session = await ended_session(tenant.mesh, "First.")
    page = await windows.open("/sessions", tenant.token())
    await page.route("**/live?*", lambda route: route.fulfill(status=503))
    await page.goto(path_of(session))
    await expect(page.locator("#connection")).to_contain_text("being made again")
    await session.send("Second.")
    await session.result(120)
    await page.unroute("**/live?*")
    await expect(page.locator("#entries")).to_contain_text("You said: Second.")
    await expect(page.locator("#connection")).to_have_text("")
    windows.problems[:] = [one for one in windows.problems if "503" not in one]


async def test_new_entries_and_the_end_are_shown_once(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await ended_session(tenant.mesh, "First.")
    page = await windows.open(path_of(session), tenant.token())
    await session.send("Second.")
    await session.result(120)
    await expect(page.locator("#entries")).to_contain_text("You said: Second.")
    await session.kill()
    await expect(page.locator("#connection")).to_have_text("The session has ended.")
    await expect(page.locator("#message")).to_be_hidden()
    shown = await page.locator("#entries > li").evaluate_all("all => all.map(one => one.id)")
    await page.reload()
    assert shown == await page.locator("#entries > li").evaluate_all("all => all.map(one => one.id)")
    events = await page.locator("#events > li").count()
    assert events == len([event async for event in session.events()])


async def test_hostile_live_text_runs_no_script(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await ended_session(tenant.mesh, "First.")
    page = await windows.open(path_of(session), tenant.token())
    hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202e'
    await session.send(hostile)
    await session.result(120)
    await append(tenant, session, said("word " * 200_000))
    await expect(page.locator("#entries")).to_contain_text("There is more.")
    await expect(page.locator("#entries")).to_contain_text("⟨U+202E⟩")
    assert await page.locator("#entries img, #entries script").count() == 0
    assert await page.title() not in ("1", "2")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_link_to_an_entry_leads_to_it(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await ended_session(tenant.mesh)
    seq = await append(tenant, session, *(said(f"number {n}") for n in range(200)))
    page = await windows.open(f"{path_of(session)}?at={seq - 150}#e-{seq - 150}", tenant.token())
    await expect(page.locator(f"#e-{seq - 150}")).to_be_in_viewport()
    await expect(page.locator(f"#e-{seq - 150} .text")).to_have_text("number 49")


async def test_stream_of_a_session_that_ends_leaves_its_page_alone(
    windows: Windows, tenant: ConsoleTenant
) -> None:
    session = await tenant.mesh.spawn("Say hello.")

    async def done() -> bool:
        run = (await session.refresh()).latest_run
        return run is not None and run.state is RunState.SUCCEEDED

    await eventually(done, within_seconds=60)
    page = await windows.open(path_of(session), tenant.token(), scripts=False)
    await expect(page.locator("#entries")).to_contain_text("You said: Say hello.")
    await expect(page.locator("#events")).to_contain_text("The session closed.")
