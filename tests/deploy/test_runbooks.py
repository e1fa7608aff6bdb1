"""The commands of the runbooks name existing objects, and the links lead to existing pages."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deploy.rendering import ROOT, of_kind

PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))


def commands(page: Path, tool: str) -> Iterator[str]:
    """Yield the commands of the page that call the tool, from code fences and from the text."""
    text = page.read_text()
    for code in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield from (line.strip() for line in code.splitlines() if line.strip().startswith(tool))
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        # The page warns of that one.
        if code.startswith(f"{tool} ") and code != "kubectl logs deployment/session":
            yield code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_say_in_which_namespace_and_read_every_pod(page: Path) -> None:
    components = {*of_kind("Deployment", "minimal"), "migrate", "<component>"}
    for command in commands(page, "kubectl"):
        assert " --namespace mesh " in command, command
        if " logs " in command:
            assert "--prefix --tail=-1" in command, command
        for component in re.findall(r"app\.kubernetes\.io/component=([\w<>-]+)", command):
            assert component in components, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_that_needs_the_command_says_how_it_gets_to_a_cluster(page: Path) -> None:
    asked = [one for one in commands(page, "spawnmesh") if "--deep" not in one]
    assert not asked or page.name == "command.md" or "](command.md" in page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings_that_are_there(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([\w./-]+\.md)(#([\w-]+))?\)", page.read_text()):
        text = (page.parent / target).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, anchor


def test_some_page_has_each_kind_of_command() -> None:
    assert sum(1 for page in PAGES for _ in commands(page, "kubectl")) >= 10
    assert sum(1 for page in PAGES for _ in commands(page, "spawnmesh")) >= 5
