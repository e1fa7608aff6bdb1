"""The code blocks of all pages."""

import re
from dataclasses import dataclass

from tests.support.sources import ROOT

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
    """Return the texts of the page's blocks of this language that are to be run.

    A test that calls it runs them: `readings` finds the call. So it either gives each block a name,
    or does the same with all of them.
    """
    return [one.text for one in blocks_of(page) if one.language == language and not one.reason]


def all_typed(page: str) -> list[tuple[str, str]]:
    """Return languages and texts of all blocks that are to be run, as `typed` does, in their order."""
    return [(one.language, one.text) for one in blocks_of(page) if not one.reason]
