"""Schedules in a browser: one is created without scripts, and its history stays up to date."""

from typing import Any

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.schedules import NEVER_IN_A_TEST, put_schedule, schedule_path
from tests.support.console.visitors import ConsoleTenant


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


async def test_the_history_grows_while_a_person_looks(windows: Windows, tenant: ConsoleTenant) -> None:
    await put_schedule(tenant.mesh, "nightly")
    page = await windows.open(schedule_path("nightly"), tenant.token())
    await expect(page.locator("main")).to_contain_text("It was not due yet.")
    firing = await tenant.mesh.schedules.run("nightly")
    await expect(page.locator("table.list tbody tr")).to_have_count(1)
    await page.get_by_role("link", name=firing.session_id).click()
    await expect(page.locator("h1")).to_contain_text(firing.session_id)


async def test_a_schedule_is_used_without_scripts(windows: Windows, tenant: ConsoleTenant) -> None:
    page = await windows.open("/schedules", tenant.token(), scripts=False)
    await page.get_by_label("Name").fill("nightly")
    await page.get_by_label("Cron line").fill(NEVER_IN_A_TEST)
    await page.get_by_label("Time zone").fill("Europe/Berlin")
    await page.get_by_label("Task").fill("Say hello.")
    await page.get_by_label("Replace").check()
    await page.get_by_role("button", name="Create").click()
    await expect(page.locator("h1")).to_contain_text("nightly")
    await expect(page.locator(".panel .facts")).to_contain_text("at 03:00 on February 29, Europe/Berlin")
    assert (await tenant.mesh.schedules.get("nightly")).overlap == "REPLACE"
    await page.get_by_text("Change…").click()
    await page.get_by_label("Task").fill("Say goodbye.")
    await page.get_by_role("button", name="Change", exact=True).click()
    await expect(page.locator(".notice")).to_have_text("The schedule was changed.")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".notice")).to_contain_text("A session was spawned now")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("h1")).to_contain_text("paused")
    await page.get_by_text("Delete…").click()
    await page.get_by_role("button", name="Delete nightly").click()
    await expect(page.locator(".notice")).to_have_text("The schedule was deleted.")
