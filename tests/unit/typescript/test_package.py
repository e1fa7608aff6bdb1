"""The TypeScript client compiles strictly, passes its own tests, and packs what users need."""

import json
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.typescript import ROOT, SOURCE, TypeScriptPackage, build_package

pytestmark = pytest.mark.timeout(420)  # The first test installs packages, too.

SOURCES = sorted(path for folder in ("src", "test") for path in (SOURCE / folder).glob("*.ts"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypeScriptPackage]:
    """The package, built once. Compilation is strict: an error in a type ends the build."""
    folder = tmp_path_factory.mktemp("typescript")
    yield build_package(folder)
    shutil.rmtree(folder)


def test_its_own_tests_pass(package: TypeScriptPackage) -> None:
    command = ["npm", "test", "--silent"]
    done = subprocess.run(
        command, cwd=package.sources, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    counted = re.search(r"# pass (\d+)", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1]) > 50
    assert re.search(r"# skipped 0$", done.stdout, re.MULTILINE)


def test_packed_file_has_code_types_and_licence_alone(package: TypeScriptPackage) -> None:
    with tarfile.open(package.packed) as packed:
        names = {member.name.removeprefix("package/") for member in packed.getmembers()}
    others = {name for name in names if not name.startswith("dist/")}
    assert others == {"LICENSE", "README.md", "package.json"}
    assert all(name.endswith((".js", ".d.ts")) for name in names if name.startswith("dist/"))
    for module in ("index", "web", "gen/spawnmesh/session/v1/session_service_pb"):
        assert {f"dist/{module}.js", f"dist/{module}.d.ts"} <= names


def test_browser_entry_imports_nothing_of_node(package: TypeScriptPackage) -> None:
    dist = package.sources / "dist"
    reached, left = set[Path](), [dist / "web.js"]
    while left:
        file = left.pop()
        if file not in reached:
            reached.add(file)
            for name in re.findall(r'^(?:import|export) .*?"([^"]+)";$', file.read_text(), re.MULTILINE):
                assert not name.startswith(("node:", "@connectrpc/connect-node")), f"{file.name}: {name}"
                if name.startswith("."):
                    left.append((file.parent / name).resolve())
    assert dist / "session.js" in reached


def test_versions_are_exact_and_that_of_the_mesh() -> None:
    manifest = json.loads((SOURCE / "package.json").read_text())
    assert manifest["license"] == "Apache-2.0"
    python = tomllib.loads((ROOT / "libs/client/pyproject.toml").read_text())["project"]
    assert manifest["version"] == python["version"]
    for group in ("dependencies", "devDependencies"):
        for name, version in manifest[group].items():
            assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{name} {version}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_source_is_short_and_narrow(source: Path) -> None:
    lines = source.read_text().splitlines()
    assert len(lines) <= 415
    assert [number for number, line in enumerate(lines, 1) if len(line) > 110] == []
