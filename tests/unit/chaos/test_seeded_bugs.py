"""The seeded bugs fit the product as it is, so that `make seeded-bugs` can seed them."""

import pytest

from tests.chaos.seeded_bugs.bug import Change, SeededBug
from tests.chaos.seeded_bugs.bugs import SEEDED_BUGS
from tests.chaos.seeded_bugs.sandbox import ROOT, NotApplicable, changed


@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=lambda bug: bug.name)
def test_bug_can_be_seeded_and_names_tests_that_exist(bug: SeededBug) -> None:
    texts: dict[str, str] = {}
    for change in bug.changes:
        text = texts.setdefault(change.path, (ROOT / change.path).read_text())
        texts[change.path] = changed(text, change)
        assert texts[change.path] != text
    assert bug.tests
    for test in bug.tests:
        path, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / path).read_text(), test


@pytest.mark.parametrize("text", ["", "old old"])
def test_change_that_does_not_fit_once_is_refused(text: str) -> None:
    with pytest.raises(NotApplicable):
        changed(text, Change("a.py", "old", "new"))
