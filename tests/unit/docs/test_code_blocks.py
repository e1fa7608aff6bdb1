"""Every code block of a page is run by a test, or says why it is not."""

import json
import re

import pytest
import yaml

from tests.support.docs.code_blocks import PARSED, SHOWN, Block, blocks_of, pages, run_by
from tests.support.forking import ROOT

BLOCKS = [block for page in pages() for block in blocks_of(page)]
RUN_BY = run_by()


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) > 150
    missing = [
        str(block)
        for block in BLOCKS
        if not block.reason
        and block.language not in SHOWN | PARSED
        and block.language not in RUN_BY.get(block.page, {})
    ]
    assert missing == [], "name the test in run_by.toml, or put `<!-- not run: … -->` before the block"


def test_block_that_is_run_says_nothing_else() -> None:
    shown = [str(block) for block in BLOCKS if block.reason and block.language in SHOWN]
    assert shown == []
    short = [str(block) for block in BLOCKS if block.reason and len(block.reason.split()) < 4]
    assert short == [], "the mark is no reason"


@pytest.mark.parametrize("page", sorted(RUN_BY))
def test_named_file_reads_the_blocks_of_the_page(page: str) -> None:
    """It names the page, and the language of the blocks; a file for all pages reads them by `typed`."""
    languages = {block.language for block in blocks_of(page) if not block.reason}
    assert set(RUN_BY[page]) <= languages, "the page has no such block"
    for language, name in RUN_BY[page].items():
        source = (ROOT / name).read_text()
        if f'typed(page, "{language}")' not in source:
            assert page.rpartition("/")[2] in source, f"{name} does not read {page}"
            assert re.search(rf"```(\(|\{{|{language}\b)", source), (
                f"{name} does not read blocks of {language}"
            )


def readable(block: Block) -> bool:
    try:
        several = (
            list(yaml.safe_load_all(block.text)) if block.language == "yaml" else [json.loads(block.text)]
        )
    except (yaml.YAMLError, ValueError):
        return False
    return any(isinstance(one, dict | list) for one in several)


def test_data_can_be_read_by_their_parser() -> None:
    found = [block for block in BLOCKS if block.language in PARSED]
    assert len(found) > 10
    assert [str(block) for block in found if not readable(block)] == []
