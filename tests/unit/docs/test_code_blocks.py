"""Every code block of a page is run by a test, or says why it is not."""

import json
import re

import pytest
import yaml

from tests.support.docs.code_blocks import PARSED, SHOWN, Block, blocks_of, pages
from tests.support.docs.readings import BlocksLeftOut, Reading, readings, readings_of_tests
from tests.support.sources import ROOT

BLOCKS = [block for page in pages() for block in blocks_of(page)]
READINGS = readings_of_tests()
FILE = "tests/mesh/test_some_howto.py"
IMPORT = "from tests.support.docs.code_blocks import typed\n"


def unread(blocks: list[Block], found: list[Reading]) -> list[str]:
    """Return the blocks that are to be run and that no test reads."""
    missing = []
    for block in blocks:
        alike = [
            one
            for one in blocks
            if (one.page, one.language) == (block.page, block.language) and not one.reason
        ]
        if not block.reason and not any(
            reading.reads(alike.index(block), len(alike))
            for reading in found
            if reading.page == block.page and reading.language in ("", block.language)
        ):
            missing.append(str(block))
    return missing


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) > 150
    typed = [block for block in BLOCKS if block.language not in SHOWN | PARSED]
    assert unread(typed, READINGS) == [], "let a test read it, or put `<!-- not run: … -->` before the block"


def test_every_reading_is_one_of_blocks_that_are_to_be_run() -> None:
    known = {
        (block.page, language) for block in BLOCKS if not block.reason for language in ("", block.language)
    }
    assert [str(one) for one in READINGS if (one.page, one.language) not in known] == []
    assert len({one.page for one in READINGS}) > 20


@pytest.mark.parametrize(
    "reads",
    [
        "FIRST, SECOND = typed('a.md')\nprint(FIRST, SECOND)",
        "for block in typed('a.md'):\n    print(block)",
        "ALL = typed('a.md', 'sh')\nprint(''.join(ALL))",
        "FIRST, _ = typed('a.md')\n_, SECOND = typed('a.md')\nprint(FIRST, SECOND)",
        "PAGES = ('a.md', 'b.md')\nprint([run(block) for page in PAGES for block in typed(page)])",
    ],
)
def test_block_that_is_added_is_missed_unless_the_test_reads_all(reads: str) -> None:
    blocks = [Block("a.md", line, "sh", "ls", "") for line in (1, 2, 3)]
    found = list(readings(IMPORT + reads, FILE))
    assert unread(blocks[:2], found) == []
    assert unread(blocks, found) == ([str(one) for one in blocks] if "FIRST" in reads else [])


def test_block_whose_name_is_not_used_is_missed() -> None:
    blocks = [Block("a.md", line, "sh", "ls", "") for line in (1, 2)]
    found = list(readings(f"{IMPORT}FIRST, SECOND = typed('a.md')\nprint(SECOND)", FILE))
    assert unread(blocks, found) == ["a.md:1 (sh)"]


@pytest.mark.parametrize(
    "chooses",
    [
        "FIRST, *OTHERS = typed('a.md')\nprint(FIRST, OTHERS)",
        "print(typed('a.md')[0])",
        "print([block for block in typed('a.md') if 'up' in block])",
        "ALL = typed('a.md')\nprint(ALL[0])",
        "for block in typed('a.md'):\n    if 'up' in block:\n        continue\n    print(block)",
        "ALL = typed('a.md')",
    ],
)
def test_call_that_may_leave_blocks_out_is_refused(chooses: str) -> None:
    with pytest.raises(BlocksLeftOut, match=f"{FILE}:2"):
        list(readings(IMPORT + chooses, FILE))


def test_block_that_is_run_says_nothing_else() -> None:
    shown = [str(block) for block in BLOCKS if block.reason and block.language in SHOWN]
    assert shown == []
    short = [str(block) for block in BLOCKS if block.reason and len(block.reason.split()) < 4]
    assert short == [], "the mark is no reason"


def test_tests_that_a_mark_names_are_there() -> None:
    named = [(block, path) for block in BLOCKS for path in re.findall(r"\btests/[\w./-]*\w", block.reason)]
    assert len(named) > 20
    assert [f"{block}: {path}" for block, path in named if not (ROOT / path).exists()] == []


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
