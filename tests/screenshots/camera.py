"""Pictures of pages, taken by a real browser and made small."""

import io
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

from tests.screenshots.pictures import SCHEMES, WIDTHS, Picture
from tests.screenshots.story import PicturedTenant
from tests.support.console.browsers import Windows, browser_package, open_browser
from tests.support.console.running_console import RunningConsole

if TYPE_CHECKING:
    from playwright.async_api import Page

HIGHEST = {"wide": 1100, "narrow": 1200}
"""The most pixels from the top of a page that a picture shows."""
_LOWEST = 320
_TOP = "(one) => Math.max(0, Math.floor(one.getBoundingClientRect().top + scrollY) - 24)"
_COLOURS = 96
_SURFACES = 16
_CANDIDATES = 3_000
_DISTANCE = 24
_SHADES = 12
"""The least differences of two colours and of two surfaces, over red, green and blue."""

Colour = tuple[int, int, int]


async def take(
    console: RunningConsole, pictures: Iterable[Picture], story: PicturedTenant, token: str, mesh_token: str
) -> list[Path]:
    """Picture each page at both widths in both schemes of colours, and return the files."""
    chosen, files = list(pictures), []
    async with open_browser() as browser, AsyncExitStack() as exits:
        windows = Windows(browser, console, exits)
        for width, pixels in WIDTHS.items():
            pages = {
                "tenant": await windows.open("/sessions", token, width=pixels),
                "mesh": await windows.open("/tenants", mesh_token, width=pixels),
                "public": await windows.open("/sign-in", width=pixels),
            }
            for picture in chosen:
                page = pages["public" if picture.is_public else "mesh" if picture.of_mesh else "tenant"]
                await _show(page, picture, story)
                for scheme in SCHEMES:
                    file = picture.file(width, scheme)
                    file.write_bytes(await _shot(page, picture.begins, scheme, HIGHEST[width]))
                    files.append(file)
    return files


async def _show(page: "Page", picture: Picture, story: PicturedTenant) -> None:
    answer = await page.goto(picture.address(story), wait_until="load")
    assert answer is not None, picture.name
    assert answer.ok, f"{picture.name}: {answer.status}"
    for selector in picture.opens:
        await page.locator(selector).first.click()
    await page.evaluate("document.activeElement?.blur(); scrollTo(0, 0)")


async def _shot(page: "Page", begins: str, scheme: str, highest: int) -> bytes:
    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    # As high as what the page has: `main` ends in empty space.
    height = await page.evaluate(
        "() => Math.max(...[...document.querySelectorAll('main > *')]"
        ".map((one) => Math.ceil(one.getBoundingClientRect().bottom + scrollY) + 32))"
    )
    await page.evaluate("scrollTo(0, 0)")
    width = page.viewport_size["width"]  # type: ignore[index]
    top = await page.locator(begins).evaluate(_TOP) if begins else 0
    clip = {"x": 0, "y": top, "width": width, "height": max(_LOWEST, min(height - top, highest))}
    return smaller(await page.screenshot(full_page=True, clip=clip, caret="hide"))  # type: ignore[arg-type]


def smaller(png: bytes) -> bytes:
    """Return the picture with a palette of few colours, each of which is one of the picture."""
    image = browser_package("PIL.Image")
    with image.open(io.BytesIO(png)) as opened:
        full = opened.convert("RGB")
    counted = sorted(full.getcolors(full.width * full.height), reverse=True)
    palette = image.new("P", (1, 1))
    palette.putpalette([level for colour in _chosen([colour for _, colour in counted]) for level in colour])
    written = io.BytesIO()
    full.quantize(palette=palette, dither=image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


def _chosen(colours: Sequence[Colour]) -> list[Colour]:
    """Return the colours that are kept, the most frequent first: surfaces exactly, and of the others
    those that differ enough.
    """
    chosen: list[Colour] = []
    for colour in colours[:_CANDIDATES]:
        least = _DISTANCE if len(chosen) >= _SURFACES else _SHADES
        if all(sum(map(abs, map(sub, colour, other))) >= least for other in chosen):
            chosen.append(colour)
        if len(chosen) == _COLOURS:
            break
    return chosen
