"""The list of sessions in a browser: it stays up to date by itself."""

from typing import TYPE_CHECKING, Any

import jwt
from spawnmesh_client.revocations import revoke_token
from spawnmesh_devstack.stack import Stack

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.running_console import start_console
from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.async_api import Page

SLOW = "scripted/slow"


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


def state_of(page: "Page", label: str) -> Any:
    return page.locator("#rows tr", has_text=label).locator(".state")


async def renewed(page: "Page", shown: Any, text: str) -> None:
    """Let time go on in the page until the list has the text at this place."""

    async def is_shown() -> bool:
        await page.clock.fast_forward(3_000)
        return [text] == [" ".join(one.split()) for one in await shown.all_inner_texts()]

    await eventually(is_shown)


async def test_a_new_session_appears_and_its_state_follows(windows: Windows, tenant: ConsoleTenant) -> None:
    page = await windows.open("/sessions", tenant.token(), has_clock=True)
    await expect(page.locator("#rows")).to_contain_text("There are no sessions yet")
    session = await tenant.mesh.spawn("Count.", label="counter", model=SLOW)
    await renewed(page, state_of(page, "counter"), "running")
    await session.kill()
    await renewed(page, state_of(page, "counter"), "killed")
    await expect(page.locator("#rows .why")).to_have_text("KILLED")
    second = await tenant.mesh.spawn("Say hello.", label="second")
    await renewed(page, state_of(page, "second"), "succeeded")
    await expect(page.locator("#rows tbody tr")).to_have_count(2)
    await page.get_by_role("link", name="second").click()
    await expect(page).to_have_url(f"{tenant.console.base_url}/sessions/{second.session_id}")


async def test_the_list_renews_itself_without_help(windows: Windows, tenant: ConsoleTenant) -> None:
    page = await windows.open("/sessions", tenant.token())
    session = await tenant.mesh.spawn("Count.", label="counter", model=SLOW)
    await expect(state_of(page, "counter")).to_have_text("running")
    await session.kill()


async def test_a_filter_stays_while_the_list_is_renewed(windows: Windows, tenant: ConsoleTenant) -> None:
    label = 'a "b" \\ <c> &'
    page = await windows.open("/sessions", tenant.token(), has_clock=True)
    await page.get_by_label("Label").fill(label)
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("#rows")).to_contain_text("No session fulfils these conditions")
    other = await tenant.mesh.spawn("Count.", label="other", model=SLOW)
    wanted = await tenant.mesh.spawn("Count.", label=label, model=SLOW)
    await page.get_by_label("Label").blur()
    await renewed(page, page.locator("#rows tbody a"), label)
    await expect(page.get_by_label("Label")).to_have_value(label)
    await page.get_by_role("link", name="Clear").click()
    await expect(page.locator("#rows tbody tr")).to_have_count(2)
    await other.kill()
    await wanted.kill()


async def test_times_go_on_without_a_request(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await tenant.mesh.spawn("Count.", label="old", model=SLOW)
    await session.kill()
    page = await windows.open("/sessions?label=old", tenant.token(), has_clock=True)
    windows.expected += ["ERR_FAILED"]
    await page.context.route("**/*", lambda route: route.abort())
    await page.clock.fast_forward(7 * 60_000)
    await expect(page.locator("#rows time")).to_have_text("7 min ago")
    await page.clock.fast_forward(3 * 3_600_000)
    await expect(page.locator("#rows time")).to_have_text("3 h ago")


async def test_a_list_that_is_read_with_the_keyboard_stays(windows: Windows, tenant: ConsoleTenant) -> None:
    """Else the focus would be lost with the row."""
    session = await tenant.mesh.spawn("Count.", label="first", model=SLOW)
    page = await windows.open("/sessions", tenant.token(), has_clock=True)
    link = page.get_by_role("link", name="first")
    await link.focus()
    refreshed = []
    page.on("request", lambda request: refreshed.append(request.url))
    await session.kill()
    await tenant.mesh.spawn("Count.", label="second", model=SLOW)
    await page.clock.fast_forward(60_000)
    await expect(link).to_be_focused()
    assert refreshed == []
    await page.get_by_label("Label").focus()
    await renewed(page, state_of(page, "first"), "killed")
    await renewed(page, state_of(page, "second"), "running")


async def test_a_console_that_restarts_goes_on(windows: Windows, tenant: ConsoleTenant, stack: Stack) -> None:
    own = await start_console(stack, stack.data_dir / "restarted-console", "restarted-console")
    windows.console = own
    page = await windows.open("/sessions", tenant.token(), has_clock=True)
    windows.expected += ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]
    await stack.processes[own.name].kill()
    session = await tenant.mesh.spawn("Count.", label="meanwhile", model=SLOW)
    await page.clock.fast_forward(3_000)  # A refresh finds no console.
    await stack.restart(own.name)
    await renewed(page, state_of(page, "meanwhile"), "running")
    await session.kill()


async def test_a_revoked_token_leads_to_the_sign_in(windows: Windows, tenant: ConsoleTenant) -> None:
    token = tenant.token()
    page = await windows.open("/sessions?label=a", token)
    await expect(page.locator("#rows")).to_contain_text("No session fulfils")
    windows.expected += ["401 (Unauthorized)"]
    jti = jwt.decode(token, options={"verify_signature": False})["jti"]
    await revoke_token(tenant.mesh.wire, jti)
    await expect(page.locator("h1")).to_have_text("Sign in")
    await page.get_by_label("Token").fill(tenant.token())
    await page.get_by_role("button", name="Sign in").click()
    await expect(page).to_have_url(f"{tenant.console.base_url}/sessions?label=a")
