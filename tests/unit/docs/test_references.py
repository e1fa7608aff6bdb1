"""The pages of the site that are made from the code: settings, the command, and `llms.txt`."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from spawnmesh_runtime.settings import CpuWorkerSettings, ProcessSettings

from tests.support.command.fake_mesh import spawnmesh
from tests.support.docs.hooks import hook
from tests.support.sources import ROOT

settings_reference: Any = hook("settings_reference")
SERVICES = settings_reference.SERVICES


def test_every_setting_says_what_it_is() -> None:
    models = {service: settings_reference.settings_of(service) for service in SERVICES}
    models |= {"all": ProcessSettings, "workers": CpuWorkerSettings}
    silent = [
        f"{service}: {name}"
        for service, model in models.items()
        for name, text in settings_reference.described(model)
        if not text.endswith(".")
    ]
    assert silent == []


@pytest.mark.parametrize("service", SERVICES)
def test_the_page_has_every_setting_of_the_service(service: str) -> None:
    (page,) = settings_reference.pages().values()
    model = settings_reference.settings_of(service)
    prefix = model.model_config["env_prefix"]
    missing = [
        name
        for name in model.model_fields
        if f"`{prefix}{name.upper()}`" not in page and f"`…_{name.upper()}`" not in page
    ]
    assert missing == []


def test_values_and_defaults_are_those_of_the_class() -> None:
    (page,) = settings_reference.pages().values()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert rows["SESSION_DATABASE_URL"].startswith("text | required | ")
    assert rows["RUNNER_MAX_RUNS"].startswith("whole number from 1 to 64 | `8` | ")
    assert rows["RUNNER_HEARTBEAT_SHARE"].startswith("number over 0 below 0.9 | `0.333333` | ")
    assert rows["ATTACHMENT_BLOB_S3_ENCRYPTION"].startswith("`none`, `s3`, `kms` | `none` | ")
    assert rows["HOOK_ALLOWED_ENDPOINT_HOSTS"].startswith("JSON list |  | ")


def test_the_page_of_the_command_has_every_command() -> None:
    page = hook("command_reference").page()
    assert spawnmesh().commands.keys() - set(re.findall(r"^## `spawnmesh ([a-z]+)`", page, re.M)) <= {
        "session"
    }
    assert "### `spawnmesh sessions delete`" in page


def test_programs_find_every_page_as_markdown(tmp_path: Path) -> None:
    """The hooks of the site are called as mkdocs calls them."""
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    build(config)
    listed = re.findall(r"^- \[.+\]\((.+\.md)\)$", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    served = {str(page.parent.relative_to(tmp_path)) for page in tmp_path.glob("**/index.html")}
    assert len(listed) == len(set(listed)) == len(served)
    for path in listed:
        text = (tmp_path / path).read_text()
        source = ROOT / "docs" / path
        if source.exists():
            assert text.strip() == source.read_text().strip(), path
        assert text.startswith("# "), path


def test_sections_are_those_of_the_navigation() -> None:
    llms = hook("llms_txt")
    config = SimpleNamespace(site_name="Name", site_description="Words.")
    section = llms.Section("How to", [])
    pages = [
        SimpleNamespace(title="One", file=SimpleNamespace(src_uri="howto/one.md"), parent=section),
        SimpleNamespace(title="Ten", file=SimpleNamespace(src_uri="adr/ten.md"), parent=None),
        SimpleNamespace(title="Home", file=SimpleNamespace(src_uri="index.md"), parent=None),
    ]
    assert (
        llms.listed(config, pages).splitlines()
        == [
            "# Name",
            "",
            "> Words.",
            "",
            "## How to",
            "",
            "- [One](howto/one.md)",
            "",
            "## Decisions",
            "",
            "- [Ten](adr/ten.md)",
            "",
            "## Pages",
            "",
            "- [Home](index.md)",
            "",
        ][:-1]
    )
