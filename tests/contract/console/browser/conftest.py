"""One browser for all tests of this directory. Each test has windows of its own."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.support.console.browsers import Windows, missing_browser, open_browser, open_windows
from tests.support.console.running_console import RunningConsole

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator["Browser"]:
    """Start Chromium."""
    if problem := missing_browser():
        pytest.skip(problem)
    async with open_browser() as opened:
        yield opened


@pytest.fixture
async def windows(browser: "Browser", console: RunningConsole) -> AsyncIterator[Windows]:
    """Open windows with `await windows.open(path, token)`.

    A test fails for each error in a page, and for a request to another host.
    """
    async with open_windows(browser, console) as opened:
        yield opened
