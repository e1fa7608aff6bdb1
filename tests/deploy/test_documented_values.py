"""The values of the chart that the documentation names are in the chart."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.rendering import ROOT

VALUES: dict[str, Any] = yaml.safe_load((ROOT / "deploy/helm/spawnmesh/values.yaml").read_text())
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]

_TOP = "|".join(map(re.escape, VALUES))
# Between quotation marks, maybe with a value: `tls.mode: none`. Or as Helm is told one.
NAMED = re.compile(
    rf"`((?:{_TOP})(?:\.\w+)+)(?:: ?[^`]*)?`|--set(?:-string|-json)? '?((?:{_TOP})(?:\.\w+)+)="
)
NO_VALUES = re.compile(r"(hook|runner)\.(pem|jobs)|tls\.(crt|key)|gateway\.(spawnmesh|mesh\.svc[\w.]*)")
"""Files of keys and certificates, a table, and the domain and the address of the gateway."""


def named_in(text: str) -> set[str]:
    names = {one or other for one, other in NAMED.findall(text)}
    return {name for name in names if NO_VALUES.fullmatch(name) is None}


def is_value(name: str) -> bool:
    """Return whether the chart has the value. An operator writes what is below an empty map."""
    at: Any = VALUES
    for part in name.split("."):
        if at == {}:
            return True
        if not isinstance(at, dict) or part not in at:
            return False
        at = at[part]
    return True


def test_names_are_found_and_told_apart() -> None:
    text = "`tls.mode: none`, `tls.enabled`, `hook.pem`, `ca.crt` and --set s3.endpoint=x"
    assert named_in(text) == {"tls.mode", "tls.enabled", "s3.endpoint"}
    assert [is_value(name) for name in ("tls.mode", "tls.enabled", "tls.mode.none")] == [True, False, False]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_values_that_a_page_names_are_in_the_chart(page: Path) -> None:
    assert {name for name in named_in(page.read_text()) if not is_value(name)} == set()


def test_pages_name_values() -> None:
    assert len(set().union(*(named_in(page.read_text()) for page in PAGES))) > 30
