"""Published files on the page of their session, as they come and while a person uses the list."""

from typing import Any

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.published import file_of, held_run
from tests.support.console.visitors import ConsoleTenant


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


async def test_published_files_appear_while_a_person_looks(windows: Windows, tenant: ConsoleTenant) -> None:
    session = await tenant.mesh.spawn("Publish.", runtime="EXTERNAL", mode="SESSION")
    page = await windows.open(f"/sessions/{session.session_id}", tenant.token())
    await page.evaluate("window.wasLoadedOnce = true")
    files = page.locator("#published .files li")
    async with held_run(tenant, session) as run:
        await expect(page.locator("h1 .state")).to_have_text("running")
        await expect(page.locator("#published")).to_be_empty()
        await run.publish(file_of("first.txt", b"the first"))
        await expect(files).to_have_text(["first.txt 9 B"])
        await expect(page.locator("#events")).to_contain_text("The run published files.")

        await page.get_by_role("link", name="first.txt").focus()
        await run.publish(file_of("second.txt"))
        await expect(page.get_by_role("link", name="Look at them")).to_have_count(2)
        # An answer to the page itself would have come before this one.
        part = await page.evaluate("fetch(`${location.pathname}?part=published`).then((one) => one.text())")
        assert "second.txt" in part
        await expect(page.get_by_role("link", name="first.txt")).to_be_focused()
        await expect(files).to_have_count(1)
        await page.get_by_label("Message to the session").focus()
        await expect(files).to_have_text(["first.txt 9 B", "second.txt 9 B"])

        windows.expected += ["503"]
        await page.route("**?part=published", lambda route: route.fulfill(status=503))
        async with page.expect_response(lambda answer: answer.status == 503):
            await run.publish(file_of("third.txt"))
        await page.unroute("**?part=published")
        await expect(files).to_have_count(3)
    async with page.expect_download() as begun:
        await page.get_by_role("link", name="first.txt").press("Enter")
    download = await begun.value
    assert download.suggested_filename == "first.txt"
    assert (await download.path()).read_bytes() == b"the first"
    assert await page.evaluate("window.wasLoadedOnce"), "the page was not loaded again"
