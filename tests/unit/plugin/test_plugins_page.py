"""The programs of docs/howto/plugins.md work as they stand: a handler, its test, and a rule for tools."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from spawnmesh_plugin import FakeDispatch

from tests.support.docs.code_blocks import typed

# Those in ```python that are complete programs.
HANDLER, ITS_TEST, RULE = typed("docs/howto/plugins.md", "python")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory from which programs import, as from the one in which they are started."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("my_plugin", "my_rule"):
        sys.modules.pop(name, None)


def load(folder: Path, name: str, text: str) -> ModuleType:
    (folder / f"{name}.py").write_text(text)
    module = ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


async def test_test_of_the_page_passes_with_its_handler_and_fails_without(folder: Path) -> None:
    (folder / "my_plugin.py").write_text(HANDLER)
    page_test = load(folder, "page_test", ITS_TEST)
    await page_test.test_an_unfinished_draft_goes_back()
    sys.modules.pop("my_plugin")
    (folder / "my_plugin.py").write_text(HANDLER.replace("TODO", "FIXME"))
    other = load(folder, "page_test", ITS_TEST)
    with pytest.raises(AssertionError):
        await other.test_an_unfinished_draft_goes_back()


@pytest.mark.parametrize(("eur", "is_asked"), [(50, False), (500, True)])
async def test_rule_asks_a_person_above_its_limit(folder: Path, eur: int, is_asked: bool) -> None:
    (folder / "my_rule.py").write_text(RULE)
    import my_rule  # type: ignore[import-not-found]

    decision = await FakeDispatch(my_rule).before_tool_call(
        tool_name="pay", arguments_json=f'{{"eur": {eur}}}'
    )
    assert decision.HasField("require_approval") is is_asked
