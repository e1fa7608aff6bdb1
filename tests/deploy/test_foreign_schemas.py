"""Objects of other projects match the schemas of these projects: KEDA, the External Secrets Operator,
the Gateway API, cert-manager and the Prometheus operator.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deploy.foreign_kinds import FOREIGN
from tests.support.deploy.rendering import VARIANTS, Object, objects
from tests.support.npm import install_packages


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the schemas. Skips where they cannot be read."""
    folder = tmp_path_factory.mktemp("schemas") / "node"
    shutil.copytree(Path(__file__).with_name("node"), folder)
    install_packages(folder)
    yield folder
    shutil.rmtree(folder)  # 40 MB.


def complaints(packages: Path, checked: list[Object]) -> list[str]:
    (packages / "objects.json").write_text(json.dumps(checked))
    command = ["node", "complaints.mjs", "objects.json"]
    done = subprocess.run(command, cwd=packages, check=True, stdout=subprocess.PIPE, text=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_objects_of_every_variant_match_their_schemas(packages: Path) -> None:
    rendered = {
        json.dumps(one): one for values in VARIANTS for one in objects(*values) if one["kind"] in FOREIGN
    }
    checked = list(rendered.values())
    assert {one["kind"] for one in checked} == set(FOREIGN)
    found = complaints(packages, checked)
    said = [
        (one["kind"], one["metadata"]["name"], text) for one, text in zip(checked, found, strict=True) if text
    ]
    assert said == []


def test_schemas_refuse_what_is_wrong(packages: Path) -> None:
    (scaled,) = (one for one in objects("production", "keda") if one["kind"] == "ScaledObject")
    wrong = json.loads(json.dumps(scaled))
    wrong["spec"]["fallback"]["behavior"] = "guess"
    assert ["/spec/fallback/behavior" in text for text in complaints(packages, [scaled, wrong])] == [
        False,
        True,
    ]
