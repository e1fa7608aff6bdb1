"""Budgets in a browser: the page follows what is used, and a person who writes is not disturbed."""

from typing import Any

from spawnmesh_client import Budget
from spawnmesh_client.session import Session

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.budgets import waiting_session
from tests.support.console.visitors import ConsoleTenant

RAISE = "Raise the limit"


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


def path_of(session: Session) -> str:
    return f"/sessions/{session.session_id}"


async def test_a_run_that_waits_goes_on_live_when_a_person_raises_the_limit(
    windows: Windows, tenant: ConsoleTenant
) -> None:
    session = await waiting_session(tenant.mesh)
    page = await windows.open(path_of(session), tenant.token())
    await expect(page.locator("h1 .state")).to_have_text("waits for its budget")
    await page.get_by_label("Model calls", exact=True).fill("9")
    await page.get_by_role("button", name=RAISE).click()
    await expect(page.locator(".notice")).to_contain_text("The limits were changed.")
    await expect(page.locator("h1 .state")).to_have_text("succeeded")
    await expect(page.locator("#entries")).to_contain_text("You said: And now say goodbye.")
    await expect(page.locator("#usage .amounts")).to_have_text("2 of 9")
    await expect(page.get_by_role("button", name=RAISE)).to_have_count(0)


async def test_the_page_shows_what_is_used_as_it_happens(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await tenant.mesh.spawn("Say hello.", mode="SESSION", budget=Budget(calls=2))
    await session.result(120)
    page = await windows.open(path_of(session), tenant.token())
    await expect(page.locator("#usage .amounts")).to_have_text("1 of 2")
    await session.send("And now say goodbye.")
    await expect(page.locator("#usage .amounts")).to_have_text("2 of 2 reached")
    await session.send("Once more.")
    await expect(page.locator("h1 .state")).to_have_text("waits for its budget")
    await expect(page.get_by_role("button", name=RAISE)).to_be_visible()
    await session.set_budget(calls=30)
    await expect(page.locator("h1 .state")).to_have_text("succeeded")
    await expect(page.locator("#usage .amounts")).to_have_text("3 of 30")


async def test_a_text_that_a_person_writes_stays(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await waiting_session(tenant.mesh)
    page = await windows.open(path_of(session), tenant.token())
    field = page.get_by_label("Model calls", exact=True)
    await field.fill("12")
    await page.locator("h1").click()  # The form has the text, and not the focus.
    await session.set_budget(calls=30)
    await expect(page.locator("h1 .state")).to_have_text("succeeded")
    await expect(field).to_have_value("12")
    windows.expected += ["409 (Conflict)"]
    await page.get_by_role("button", name=RAISE).click()
    await expect(page.get_by_role("alert")).to_contain_text("The limits were changed while you wrote.")
    await expect(page.locator("#usage .amounts")).to_have_text("2 of 30")
    await expect(field).to_have_value("12")
    await page.get_by_role("button", name="Change the limits").click()
    await expect(page.locator("#usage .amounts")).to_have_text("2 of 12")
