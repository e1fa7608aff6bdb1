"""The queue of approvals in a browser: it stays up to date, and nothing moves under the pointer."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from spawnmesh_client.approval_views import Approval
from spawnmesh_client.resource_views import Agent

from tests.support.console.browsers import Windows, browser_package
from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.async_api import Page

CALLER = "You are the caller. Make the call that you are given, and say what came of it."
IDS = "**/approvals?part=ids*"

Ask = Callable[[str], Awaitable[Approval]]


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


@pytest.fixture
async def ask(tenant: ConsoleTenant) -> Ask:
    """Create an agent. Each call lets it ask a question, and returns the approval that waits."""
    mesh = tenant.mesh
    await mesh.agents.put(Agent("asker", system_prompt=CALLER, tools=("ask_user",)))

    async def asked(question: str) -> Approval:
        call = f"ask_user {json.dumps({'question': question})}"
        session = await mesh.spawn(call, agent="asker")

        async def waiting() -> list[Approval]:
            listed = mesh.approvals.list(state="PENDING", session_id=session.session_id)
            return [one async for one in listed]

        return (await eventually(waiting))[0]

    return asked


async def later(page: "Page", holds: Callable[[], Awaitable[bool]]) -> None:
    """Let time go on in the page until this holds."""

    async def is_so() -> bool:
        await page.clock.fast_forward(3_000)
        return await holds()

    await eventually(is_so)


async def test_what_others_decide_stays_in_its_place(
    windows: Windows, tenant: ConsoleTenant, ask: Ask
) -> None:
    first, second = await ask("First?"), await ask("Second?")
    page = await windows.open("/approvals", tenant.token(), has_clock=True)
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    gone, next_one = page.locator(f"#{first.approval_id}"), page.locator(f"#{second.approval_id}")
    place = await next_one.bounding_box()
    await tenant.mesh.approvals.answer(first.approval_id, "Yes.")
    third = await ask("Third?")
    await later(page, page.locator(f"#{third.approval_id}").is_visible)
    await expect(gone).to_contain_text("Decided meanwhile")
    assert await next_one.bounding_box() == place
    await expect(gone.locator("button:enabled")).to_have_count(0)
    await expect(next_one.locator("button:enabled")).not_to_have_count(0)
    cards = [url for url in fetched if "part=card" in url]
    assert [third.approval_id in url for url in cards] == [True], "known ones are not fetched again"


async def test_text_survives_the_end_of_the_sign_in(
    windows: Windows, tenant: ConsoleTenant, ask: Ask
) -> None:
    await ask("How many?")
    page = await windows.open("/approvals", tenant.token(), has_clock=True)
    windows.expected += ["401 (Unauthorized)", "503 (Service Unavailable)"]
    answer, status = page.locator("[data-key=a]"), page.locator("#fresh")
    await answer.fill("Forty-")

    async def is_stale() -> bool:
        return "Not up to date since" in await status.inner_text()

    async def is_signed_out() -> bool:
        return "Your sign-in has ended. Sign in again" in await status.inner_text()

    async def is_at_sign_in() -> bool:
        return "/sign-in?next=%2Fapprovals" in page.url

    await page.route(IDS, lambda route: route.fulfill(status=503))
    await later(page, is_stale)
    await page.unroute(IDS)
    await page.context.clear_cookies()
    await later(page, is_signed_out)
    await expect(answer).to_have_value("Forty-")
    await answer.fill("")
    await later(page, is_at_sign_in)


async def test_letters_are_shortcuts_until_they_are_switched_off(
    windows: Windows, tenant: ConsoleTenant, ask: Ask
) -> None:
    approval = await ask("How many?")
    page = await windows.open("/approvals", tenant.token())
    await page.keyboard.press("j")
    await expect(page.locator(f"#{approval.approval_id}")).to_be_focused()
    await page.get_by_label("Letters are shortcuts").uncheck()
    await page.reload()
    await page.keyboard.press("j")
    await expect(page.get_by_label("Letters are shortcuts")).not_to_be_checked()
    await expect(page.locator("article:focus")).to_have_count(0)
