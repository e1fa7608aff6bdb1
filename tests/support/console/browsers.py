"""A real browser for the pages of the console: headless Chromium."""

import importlib
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import sign_in, stranger

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

_PACKAGES = Path(__file__).parents[3] / "build" / "browser"
_FLAGS = (
    "--no-sandbox",  # The tests may run as root.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
)
PATIENCE_MILLISECONDS = 60_000.0
NARROW = 360
"""The width of a small telephone."""

_SERIOUS = ("serious", "critical")

# The elements that are wider than the window, as far as they make the page wider.
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width && document.body.scrollWidth <= width) return [];
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().right > width + 0.5 && !one.closest("header"))
    .map((one) => `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 40)}`).slice(0, 5);
}"""


def missing_browser() -> str:
    """Return the reason for which no browser can be driven here; empty if one can."""
    if not (_PACKAGES / "playwright").is_dir():
        return "`make browser` has not installed what drives a browser"
    if _chromium() is None:
        return "this machine has no Chromium"
    return ""


def browser_package(name: str) -> Any:
    """Return a module of the packages beside the environment."""
    if str(_PACKAGES) not in sys.path:
        sys.path.append(str(_PACKAGES))
    return importlib.import_module(name)


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@asynccontextmanager
async def open_browser() -> AsyncIterator["Browser"]:
    """Run Chromium for the block."""
    api = browser_package("playwright.async_api")
    api.expect.set_options(timeout=PATIENCE_MILLISECONDS)
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=_chromium(), args=list(_FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Windows:
    """The windows of a test. `problems` are errors that pages reported, and requests to other hosts.

    A test that causes one itself names it in `expected`.
    """

    browser: "Browser"
    console: RunningConsole
    exits: AsyncExitStack
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Words of problems that the test causes itself."""

    async def open(
        self,
        path: str,
        token: str = "",
        *,
        width: int = 1280,
        dark: bool = False,
        scripts: bool = True,
        has_clock: bool = False,
    ) -> "Page":
        """Open a path of the console in a browser of its own, as the person with the token.

        With a clock, the test can let time go on by `page.clock.fast_forward`.
        """
        context = await self.browser.new_context(
            base_url=self.console.base_url,
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        self.exits.push_async_callback(context.close)
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        context.on("request", lambda request: self._check_host(request.url))
        context.on("weberror", lambda error: self.problems.append(f"error of a script: {error.error}"))
        context.on("console", self._check_message)
        if token:
            await self._sign_in(context, token)
        page = await context.new_page()
        if has_clock:
            await page.clock.install()
        await page.goto(path)
        return page

    async def _sign_in(self, context: "BrowserContext", token: str) -> None:
        async with stranger(self.console) as client:
            await sign_in(client, token)
            for cookie in client.cookies.jar:
                await context.add_cookies(
                    [
                        {
                            "name": cookie.name,
                            "value": cookie.value or "",
                            "url": self.console.base_url,
                            "httpOnly": True,
                            "sameSite": "Lax",
                        }
                    ]
                )

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self.console.host:
            self.problems.append(f"a request to another host: {url}")

    def _check_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type} of {message.page and message.page.url}: {message.text}")


@asynccontextmanager
async def open_windows(browser: "Browser", console: RunningConsole) -> AsyncIterator[Windows]:
    """Close the windows at the end of the block. Raises AssertionError for their problems."""
    async with AsyncExitStack() as exits:
        windows = Windows(browser, console, exits)
        yield windows
    unexpected = [one for one in windows.problems if not any(map(one.__contains__, windows.expected))]
    assert not unexpected, unexpected


async def violations(page: "Page") -> list[str]:
    """Return the serious violations that axe-core finds on the page, in light and in dark colours."""
    await page.evaluate(browser_package("axe_playwright_python.async_playwright").Axe().axe_script)
    found = []
    # The scheme changes colours alone.
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        await page.emulate_media(color_scheme=scheme)
        options = {"resultTypes": ["violations"], **rules}
        answer = await page.evaluate("(options) => axe.run(options)", options)
        found += [
            f"{scheme}: {one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in answer["violations"]
            if one["impact"] in _SERIOUS
            for node in one["nodes"]
        ]
    return found
