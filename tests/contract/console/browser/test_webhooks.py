"""Webhooks in a browser: the log stays up to date, and what a person reads in it stays open."""

from typing import Any

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.visitors import ConsoleTenant
from tests.support.console.webhooks import DEAD_ADDRESS, path_of, put


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


async def test_the_log_grows_while_a_person_looks(windows: Windows, tenant: ConsoleTenant) -> None:
    await put(tenant.mesh, "billing", DEAD_ADDRESS, "session.ended")
    page = await windows.open(path_of("billing"), tenant.token())
    await expect(page.locator("main")).to_contain_text("Nothing was sent yet.")
    await tenant.mesh.webhooks.test("billing")
    await expect(page.locator("table.list tbody tr")).to_have_count(1)
    await page.get_by_text("Attempts and body").click()
    await page.locator("h1").click()  # The focus is elsewhere.
    await tenant.mesh.webhooks.test("billing")
    await expect(page.locator("main")).to_contain_text("Paused while you use it.")
    await expect(page.locator("details.rest pre")).to_be_visible()
    await page.get_by_text("Attempts and body").click()
    await page.locator("h1").click()
    await expect(page.locator("table.list tbody tr")).to_have_count(2)


async def test_a_webhook_is_created_without_scripts(windows: Windows, tenant: ConsoleTenant) -> None:
    page = await windows.open("/webhooks", tenant.token(), scripts=False)
    await page.get_by_label("Name").fill("billing")
    await page.get_by_label("Address", exact=True).fill(DEAD_ADDRESS)
    await page.get_by_label("run.ended").check()
    await page.get_by_label("Nothing answers at the address yet").check()
    await page.get_by_role("button", name="Create").click()
    await expect(page.locator(".secret")).to_contain_text("whsec_")
    await page.get_by_role("link", name="To the webhook").click()
    await expect(page.locator("h1")).to_contain_text("billing")
    assert (await tenant.mesh.webhooks.get("billing")).event_types == ("run.ended",)
    await page.get_by_text("Delete…").click()
    await page.get_by_role("button", name="Delete billing").click()
    await expect(page.locator(".notice")).to_have_text("The webhook was deleted.")
