"""Storage in a browser: operations are followed while they run, and started without scripts."""

from typing import Any

from spawnmesh_console.clients.transcript_storage import start_operation
from spawnmesh_console.domain.operations import OperationKind

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.held import held_transcripts, operations_done
from tests.support.console.said import ended_session
from tests.support.console.stored import (
    session_with_old_results,
    set_transcripts,
    size_of,
)
from tests.support.console.visitors import ConsoleTenant


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


async def test_an_operation_is_followed_to_its_end_while_a_person_looks(
    windows: Windows, tenant: ConsoleTenant
) -> None:
    session = await ended_session(tenant.mesh)
    page = await windows.open("/storage", tenant.token())
    await expect(page.get_by_role("heading", name="Newest operations")).to_have_count(0)
    async with held_transcripts(tenant):
        await set_transcripts(tenant, token_vocabulary="cl100k_base")
        await start_operation(tenant.mesh, OperationKind.RECOUNT, session.session_id)
        link = page.get_by_role("link", name="Recount of tokens")
        await expect(link).to_be_visible()
        await link.click()
        await expect(page.locator("h1")).to_have_text("Recount of tokens")
        await expect(page.locator(".panel .state")).not_to_have_text("done")
    await operations_done(tenant)
    await expect(page.locator(".panel .state")).to_have_text("done")
    await expect(page.locator(".panel")).to_contain_text("cl100k_base")
    await expect(page.get_by_text("Cancel…")).to_have_count(0)


async def test_a_transcript_is_tiered_with_the_keyboard_and_without_scripts(
    windows: Windows, tenant: ConsoleTenant
) -> None:
    session = await session_with_old_results(tenant, 2)
    await set_transcripts(tenant, stub_large_tool_payloads=True)
    before = await size_of(tenant.mesh, session.session_id)
    page = await windows.open("/storage", tenant.token(), scripts=False, width=360)
    await page.get_by_text("Tier…").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="See what would move")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Dry run of tiering")
    operation_id = page.url.rpartition("/")[2]
    await tenant.mesh.operations.wait(f"services/transcript/operations/{operation_id}", 120)
    await page.reload()
    await expect(page.locator("main")).to_contain_text("Nothing was changed.")
    await page.get_by_role("button", name="Tier this transcript").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Tiering")
    operation_id = page.url.rpartition("/")[2]
    await tenant.mesh.operations.wait(f"services/transcript/operations/{operation_id}", 120)
    assert (await size_of(tenant.mesh, session.session_id)).stored_bytes < before.stored_bytes
