"""Each page of concepts has a picture, near its beginning."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONCEPTS = re.search(r"  - Concepts:\n((?:      - .*\n)+)", (ROOT / "mkdocs.yml").read_text())
PAGES = re.findall(r"(architecture/\w+\.md)", CONCEPTS[1] if CONCEPTS else "")
FIRST_SCREEN = 30
"""Lines of a page, of which a table may have some."""


def test_there_are_pages_of_concepts() -> None:
    assert len(PAGES) > 10


@pytest.mark.parametrize("page", [page for page in PAGES if not page.endswith("glossary.md")])
def test_page_of_a_concept_begins_with_a_picture(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text().splitlines()
    assert "```mermaid" in lines[:FIRST_SCREEN]
