"""The code blocks of all pages, and the tests that run them."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.support.forking import ROOT

SHOWN = {"text", "mermaid"}
"""Languages of blocks that nobody types: output, and pictures, which the site draws."""
PARSED = {"yaml", "json"}
"""Languages that the check itself reads by their parser."""
_BLOCK = re.compile(
    r"^(?P<mark> *<!-- not run: (?P<reason>[^\n]+) -->\n)?(?P<indent> *)```(?P<language>[\w-]*)\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block. `reason` says why no test runs it; empty if one does."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


def pages() -> list[str]:
    """Return the paths of all pages that people read."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*/*/README.md"),
        ROOT / "protos/README.md",
    ]
    return sorted(str(file.relative_to(ROOT)) for file in found if "node_modules" not in file.parts)


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of the page in their order."""
    text = (ROOT / page).read_text()
    found = [
        Block(page, text.count("\n", 0, one.start()) + 1, one["language"], one["text"], one["reason"] or "")
        for one in _BLOCK.finditer(text)
    ]
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(found), f"{page}: a block is not closed"
    return found


def typed(page: str, language: str = "sh") -> list[str]:
    """Return the texts of the page's blocks of this language that are to be run."""
    return [one.text for one in blocks_of(page) if one.language == language and not one.reason]


def run_by() -> dict[str, dict[str, str]]:
    """Return the file with tests that runs the blocks, by page and language."""
    file = Path(__file__).with_name("run_by.toml")
    found: dict[str, dict[str, str]] = tomllib.loads(file.read_text())
    return found
