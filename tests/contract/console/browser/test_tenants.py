"""Tenants in a browser: an operator of the mesh signs in, and follows a deletion."""

from typing import Any

from spawnmesh_client.resource_views import TenantState

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.held import held_settings, hurried
from tests.support.console.visitors import ConsoleTenant, operator_of_the_mesh


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


async def test_an_operator_finds_a_tenant_and_follows_its_deletion(
    windows: Windows, tenant: ConsoleTenant
) -> None:
    page = await windows.open("/sign-in")
    await page.get_by_label("Token").fill(tenant.console.stack.admin_token())
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("h1")).to_have_text("Tenants")
    await expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_text(["Tenants"])
    await page.get_by_label("Tenant, also a deleted one").fill(tenant.tenant_id)
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text(tenant.tenant_id)
    await expect(page.locator(".panel .facts")).to_contain_text("active")
    async with operator_of_the_mesh(tenant.console) as operator, held_settings(tenant):
        await operator.tenants.delete(tenant.tenant_id)
        await page.reload()
        await expect(page.locator(".panel .facts")).to_contain_text("being deleted")

    async def is_deleted() -> bool:
        async with operator_of_the_mesh(tenant.console) as operator:
            return (await operator.tenants.get(tenant.tenant_id)).state is TenantState.DELETED

    await hurried(tenant, is_deleted)
    await expect(page.locator(".panel .state").first).to_have_text("deleted")
    await expect(page.locator("table.list").first).to_contain_text("purged")
