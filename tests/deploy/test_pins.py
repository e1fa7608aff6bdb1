"""Only packages with a pinned version and hash are installed, and the bill of materials has them all."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.deploy.rendering import ROOT

PINS = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


@pytest.fixture
def installer() -> ModuleType:
    """Load the script that installs into an image, as a module of its own for each test."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "deploy" / "docker" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pin_of(name: str) -> str:
    """Return the lines of constraints.txt about one package."""
    (found,) = re.findall(rf"^{name}==.*\n(?: .*\n)+", CONSTRAINTS, re.MULTILINE)
    return str(found)


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
    commands = re.findall(r"^\t@.*\binstall (.*)$", makefile, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert re.fullmatch(
            r"\$\(VERIFIED\) (--no-deps )?-r [\w-]+\.txt|--no-deps --no-build-isolation \$\(EDITABLE\)",
            command,
        )
    assert "pip install" not in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def test_bill_of_materials_has_every_pin_with_its_hashes(tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    script = ROOT / "deploy" / "docker" / "bill_of_materials.py"
    subprocess.run([sys.executable, "-W", "error", script, file], check=True)
    bill = json.loads(file.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {(one["name"], one["version"]): one for one in bill["components"]}
    assert set(listed) == set(PINS.findall(CONSTRAINTS))
    assert len(listed) > 100
    for (name, version), one in listed.items():
        assert one["purl"] == f"pkg:pypi/{name}@{version}"
        hashes = {each["content"] for each in one["hashes"] if each["alg"] == "SHA-256"}
        assert hashes == set(re.findall(r"sha256:(\w+)", pin_of(name))), name
