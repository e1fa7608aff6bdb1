"""Rules that each page keeps in a browser. A new page is found by its route."""

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.addresses import addresses_of, begin_of, is_page
from tests.support.console.addresses import routes as routes_of
from tests.support.console.browsers import NARROW, TOO_WIDE, Windows, browser_package, violations
from tests.support.console.furnished import Furnished
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import sign_in, stranger

if TYPE_CHECKING:
    from playwright.async_api import Page

WIDE = 1280
Tour = tuple[str, Sequence[str]]
EXPECTED = ["400 (Bad Request)", "403 (Forbidden)", "404 (Not Found)"]
"""The refusals among the pages."""
MAX_EXAMPLES = 3
"""The examples of one route that are looked at: the first ones differ most."""

# Every element that a person must be able to reach, and whether Tab can.
REACHABLE = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
  .filter((one) => one.type !== "hidden" && !one.disabled && one.checkVisibility({ visibilityProperty: true }))
  .map((one) => ({ shown: one.outerHTML.slice(0, 120), index: one.tabIndex }))"""
FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  one.setAttribute("data-was-focused", "");
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  return {
    shown: one.outerHTML.slice(0, 120),
    hasRing: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
    isSeen: box.width > 0 && box.height > 0 && box.left >= 0 && box.top < innerHeight && box.bottom > 0,
  };
}"""


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


@pytest.fixture
async def pages(furnished: Furnished, console: RunningConsole, visitors: AsyncExitStack) -> Sequence[str]:
    """Return the address of each page of the furnished tenant, and of a refusal."""
    client: httpx2.AsyncClient = await visitors.enter_async_context(stranger(console))
    await sign_in(client, furnished.tenant.token())
    several = [addresses_of(route, furnished) for route in routes_of("GET")]
    chosen = [one for examples in several for one in examples[:MAX_EXAMPLES]]
    found = [one for one in chosen if is_page(*await begin_of(client, one))]
    assert len(found) > 8
    return [*found, "/sessions?expression=nonsense", "/sessions/ses_0"]


@pytest.fixture
def tours(furnished: Furnished, console: RunningConsole, pages: Sequence[str]) -> Sequence[Tour]:
    """Return the tokens of a person of the tenant and of an operator of the mesh, each with its
    pages.
    """
    of_tenants = ["/tenants", f"/tenants/{furnished.tenant.tenant_id}", "/tenants/never-created", "/sessions"]
    return (furnished.tenant.token(), pages), (console.stack.admin_token(), of_tenants)


def one_of_each(pages: Sequence[str]) -> list[str]:
    """Return a page of each kind: their paths differ in more than an id."""
    kinds = {re.sub(r"(ses|apr|opr)_\w+", "", page.partition("?")[0]): page for page in reversed(pages)}
    return [*reversed(kinds.values())]


async def settled(page: "Page", address: str) -> None:
    """Go to the page, and wait until its scripts and styles are there. A stream goes on."""
    await page.goto(address, wait_until="load")


async def open_all(page: "Page") -> None:
    """Open what is folded, except the menu of the person."""
    await page.evaluate(
        "document.querySelectorAll('details:not(.person)').forEach((one) => { one.open = true; })"
    )


@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_axe_finds_no_serious_violation(width: int, windows: Windows, tours: Sequence[Tour]) -> None:
    windows.expected += EXPECTED
    page = await windows.open("/sign-in", width=width)
    found = {"/sign-in": await violations(page)}
    for token, addresses in tours:
        page = await windows.open("/", token, width=width)
        await page.locator("details.person summary").click()
        found[f"the menu of {addresses[0]}"] = await violations(page)
        for address in addresses:
            await settled(page, address)
            await open_all(page)
            found[address] = await violations(page)
    serious = {address: several for address, several in found.items() if several}
    assert not serious, "\n".join(map(str, serious.items()))


async def test_no_page_is_wider_than_a_narrow_window(windows: Windows, tours: Sequence[Tour]) -> None:
    windows.expected += EXPECTED
    page = await windows.open("/sign-in", width=NARROW)
    found = {"/sign-in": await page.evaluate(TOO_WIDE)}
    for token, addresses in tours:
        page = await windows.open("/", token, width=NARROW)
        for address in addresses:
            await settled(page, address)
            found[address] = await page.evaluate(TOO_WIDE)
            await open_all(page)
            found[f"{address}, opened"] = await page.evaluate(TOO_WIDE)
    wide = {address: several for address, several in found.items() if several}
    assert not wide, "\n".join(map(str, wide.items()))


async def test_each_page_can_be_read_without_scripts(
    windows: Windows, furnished: Furnished, tours: Sequence[Tour]
) -> None:
    """The page shows the same without them."""
    windows.expected += EXPECTED
    for token, addresses in tours:
        plain = await windows.open("/", token, scripts=False)
        for address in addresses:
            await plain.goto(address)
            await expect(plain.locator("h1")).to_be_visible()
            shown = await plain.locator("main").inner_text()
            assert len(shown.split()) > 3, address
    plain = await windows.open("/", furnished.tenant.token(), scripts=False)
    await plain.goto(f"/sessions/{furnished.done}")
    await expect(plain.locator("main")).to_contain_text("I am the scripted model")
    await plain.goto("/sessions")
    await plain.get_by_label("Label").fill("child")
    await plain.get_by_role("button", name="Filter").click()
    await expect(plain.locator("#rows tbody tr")).to_have_count(1)
    await plain.get_by_role("link", name="child").click()
    await expect(plain.locator("h1")).to_contain_text("child")


async def test_tab_reaches_everything_in_its_order(windows: Windows, tours: Sequence[Tour]) -> None:
    windows.expected += EXPECTED
    for token, addresses in tours:
        await check_tab(await windows.open("/", token), one_of_each(addresses))


async def check_tab(page: "Page", addresses: Sequence[str]) -> None:
    """Fail for an element that Tab does not reach, or whose focus is not seen."""
    for address in addresses:
        await settled(page, address)
        reachable = await page.evaluate(REACHABLE)
        assert [one for one in reachable if one["index"] != 0] == [], address
        await page.locator(".skip").focus()  # A field of the page can have the focus at its begin.
        hidden = []
        for _ in range(len(reachable) + 1):
            await page.keyboard.press("Tab")
            focused = await page.evaluate(FOCUSED)
            if focused is None:
                break
            if not (focused["hasRing"] and focused["isSeen"]):
                hidden.append(focused)
        assert hidden == [], f"{address}: the focus is not seen"
        missed = await page.evaluate(
            """() => [...document.querySelectorAll(
                 "a[href]:not([data-was-focused]):not(.skip), button:not([data-was-focused]), summary:not([data-was-focused]), " +
                 "input:not([data-was-focused]), select:not([data-was-focused]), textarea:not([data-was-focused])")]
              .filter((one) => one.type !== "hidden" && one.type !== "radio" && !one.disabled)
              .filter((one) => one.checkVisibility({ visibilityProperty: true }))
              .map((one) => one.outerHTML.slice(0, 120))"""
        )
        assert missed == [], f"{address}: Tab does not reach these"


async def test_the_first_tab_leads_past_the_navigation(windows: Windows, furnished: Furnished) -> None:
    page = await windows.open("/sessions", furnished.tenant.token())
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="New session").last).to_be_focused()


async def test_a_person_signs_in_and_out_with_the_keyboard_alone(
    windows: Windows, furnished: Furnished
) -> None:
    page = await windows.open("/sessions?label=child")
    await expect(page.get_by_label("Token")).to_be_focused()
    await page.keyboard.insert_text(furnished.tenant.token(ClientRole.READER))
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{windows.console.base_url}/sessions?label=child")
    menu = page.locator("details.person summary")
    await menu.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Sign in")
    assert await page.context.cookies() == []
    await page.go_back()
    await expect(page.locator("h1")).to_have_text("Sign in")


async def test_the_policy_stops_scripts_that_are_not_of_the_console(
    windows: Windows, furnished: Furnished
) -> None:
    """A second wall: it holds if a text should become markup one day."""
    page = await windows.open("/sessions", furnished.tenant.token())
    windows.expected += ["Content Security Policy", "Trusted", "trusted"]
    blocked = await page.evaluate(
        """async () => {
          const found = [];
          try { document.body.innerHTML = "<img src=x>"; found.push("innerHTML"); } catch {}
          try { trustedTypes.createPolicy("other", { createHTML: (html) => html }); found.push("policy"); } catch {}
          try { await fetch("https://evil.example/"); found.push("fetch"); } catch {}
          const script = document.createElement("script");
          try { script.append("window.ran = true"); } catch {}
          document.body.append(script);
          const image = document.createElement("img");
          try { image.setAttribute("onerror", "window.ran = true"); found.push("onerror"); } catch {}
          image.src = "/nothing";
          document.body.append(image);
          await new Promise((done) => { image.addEventListener("error", done); });
          return window.ran ? [...found, "script"] : found;
        }"""
    )
    assert blocked == []
    windows.expected += ["404 (Not Found)"]
