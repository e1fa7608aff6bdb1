"""Only packages with a pinned version and hash are installed, and the bill of materials has them all."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.deploy.rendering import ROOT, of_kind

PINS = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PIN_FILES = {
    "constraints.txt": "required",
    "requirements-dev.txt": "excluded",
    "requirements-smollm2.txt": "optional",
    "requirements-tools.txt": "excluded",
    "requirements-examples.txt": "excluded",
    "requirements-browser.txt": "excluded",
}
"""The files with pins, and the scope of their packages in the bill of materials."""
BILL = ROOT / "deploy" / "docker" / "bill_of_materials.py"


@pytest.fixture
def installer() -> ModuleType:
    """Load the script that installs into an image, as a module of its own for each test."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "deploy" / "docker" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pin_of(name: str, version: str = "", text: str = CONSTRAINTS) -> str:
    """Return the lines about one package."""
    found = re.findall(rf"^{name}=={re.escape(version)}.*\n(?: .*\n)+", text, re.MULTILINE)
    return str(found[0])


def with_pins(installer: ModuleType, monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> None:
    (root / "constraints.txt").write_text(text)
    monkeypatch.setattr(installer, "ROOT", root)


def test_package_whose_content_has_another_hash_is_not_installed(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = re.sub(r"sha256:\w{8}", "sha256:00000000", pin_of("h11"))
    with_pins(installer, monkeypatch, tmp_path, other)
    with pytest.raises(subprocess.CalledProcessError):
        installer.install_verified(["h11"], tmp_path / "venv")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not list((tmp_path / "venv").glob("lib/*/site-packages/h11"))


def test_package_without_a_pin_is_not_installed(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_pins(installer, monkeypatch, tmp_path, pin_of("markdown-it-py"))
    with pytest.raises(SystemExit, match=r"constraints\.txt has no pin of mdurl"):
        installer.pins_of(["markdown-it-py"])


def test_every_installation_verifies_hashes_or_takes_our_own_code_alone() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (verified,) = re.findall(r"^VERIFIED := (.*)$", makefile, re.MULTILINE)
    assert verified == "--require-hashes --only-binary :all:"
    commands = re.findall(r"^\t[@ $](?!echo).*?\binstall (.*?)(?: \\)?$", makefile, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        assert re.fullmatch(
            r"(--no-compile )?\$\(VERIFIED\) (--no-deps )?-r ([\w-]+\.txt|\$\(1\))( --target \$\((EXAMPLES|BROWSER)\))?"
            r"|--no-deps --no-build-isolation \$\(EDITABLE\)",
            command,
        )
    assert "pip install" not in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def bill(*arguments: Path | str) -> dict[str, dict[str, Any]]:
    """Return the components of a new bill of materials by their package URLs."""
    subprocess.run([sys.executable, "-W", "error", BILL, *arguments], check=True)
    written = json.loads(Path(arguments[0]).read_text())
    assert (written["bomFormat"], written["specVersion"]) == ("CycloneDX", "1.6")
    return {one["purl"]: one for one in written["components"]}


def test_bill_of_materials_has_every_pin_with_its_hashes(tmp_path: Path) -> None:
    listed = bill(tmp_path / "bill.json")
    packages = {purl: one for purl, one in listed.items() if purl.startswith("pkg:pypi/")}
    wanted = {}
    for file in reversed(list(PIN_FILES)):
        text = (ROOT / file).read_text()
        found = PINS.findall(text)
        assert len(found) >= 2, file
        wanted |= {
            f"pkg:pypi/{name}@{version.replace('!', '%21')}": (file, pin_of(name, version, text))
            for name, version in found
        }
    assert set(packages) == set(wanted)
    for purl, one in packages.items():
        file, pin = wanted[purl]
        hashes = {each["content"] for each in one["hashes"] if each["alg"] == "SHA-256"}
        assert hashes == set(re.findall(r"sha256:(\w+)", pin)), purl
        assert one["scope"] == PIN_FILES[file], purl


def test_bill_of_materials_has_the_packages_of_the_typescript_client(tmp_path: Path) -> None:
    listed = bill(tmp_path / "bill.json")
    found = {purl: one["scope"] for purl, one in listed.items() if purl.startswith("pkg:npm/")}
    package = json.loads((ROOT / "clients/typescript/package.json").read_text())
    scopes = {"dependencies": "required", "devDependencies": "excluded"}
    assert found == {
        f"pkg:npm/{name.replace('@', '%40')}@{version}": scope
        for key, scope in scopes.items()
        for name, version in package[key].items()
    }
    assert len(found) >= 6


def test_bill_of_materials_has_the_images(tmp_path: Path) -> None:
    digest = f"sha256:{64 * 'b'}"
    by_tag, by_digest = bill(tmp_path / "tag.json"), bill(tmp_path / "digest.json", digest)
    images = {one["name"]: one for one in by_tag.values() if one["type"] == "container"}
    python, postgres, s3 = (
        f"docker.io/{name}" for name in ("library/python", "library/postgres", "chrislusf/seaweedfs")
    )
    assert set(images) == {python, postgres, s3}
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert f"FROM python:{images[python]['version']}@" in dockerfile
    servers = of_kind("StatefulSet", "trial")
    for server, name in (("postgresql", postgres), ("s3", s3)):
        (container,) = servers[server]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"{name}:{images[name]['version']}"
    (base,) = [one for one in by_digest.values() if one["name"] == python]
    assert base["version"] == digest


def recipe(target: str) -> tuple[str, str]:
    """Return what a target of the Makefile needs, and its commands."""
    found = re.search(
        rf"^{target}: ([^#\n]*)#.*\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert found, target
    return found[1], found[2]


def test_audit_reads_every_file_of_pins_and_tests_write_the_bill() -> None:
    files = re.search(r"^PIN_FILES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert files
    assert sorted(files[1].split()) == sorted(PIN_FILES)
    assert {path.name for path in ROOT.glob("requirements-*.txt")} - {"requirements-dev.txt"} < set(PIN_FILES)
    _, commands = recipe("audit")
    assert "for file in $(PIN_FILES)" in commands
    assert re.search(r"pip-audit .*--require-hashes .*-r \$\$file", commands)
    assert "bom" in recipe("test")[0].split()


def test_audit_fails_if_one_file_fails_and_reads_the_others(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    (tools / "bin").mkdir(parents=True)
    (tools / ".ready").touch()
    auditor = tools / "bin" / "pip-audit"
    auditor.write_text('#!/bin/sh\nfor last; do :; done\n[ "$last" != requirements-tools.txt ]\n')
    auditor.chmod(0o755)
    command = ["make", "--silent", f"--assume-old={tools}/.ready", f"TOOLS={tools}", "audit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert sorted(done.stdout.splitlines()) == sorted(f"audit: {file}" for file in PIN_FILES)
    assert "audit: a package of requirements-tools.txt has a vulnerability" in done.stderr
    assert done.returncode != 0


def test_release_steps_name_the_audit_and_what_it_needs() -> None:
    steps = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Release\n")[2].partition("\n## ")[0]
    assert steps.index("`make test-all`") < steps.index("`make audit`") < steps.index("build the images")
    install = (ROOT / "docs" / "howto" / "install-on-kubernetes.md").read_text()
    build = install.partition("## 1. Build the images")[2].partition("\n## ")[0]
    for page in (steps, build):
        assert "`make audit`" in page
        assert "advisories of the package index" in " ".join(page.split())
    assert "make audit" in (ROOT / "README.md").read_text()
