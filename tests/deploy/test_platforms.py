"""Images can be built for linux/amd64 and linux/arm64: no step and no package is for one of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deploy.rendering import ROOT

DOCKER = ROOT / "deploy" / "docker"
PLATFORMS = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_GLIBC = range(17, 37)
"""The versions 2.17 to 2.36 of glibc: the last one is that of Debian 12, the base image's."""
_PINS_OF_ALL_IMAGES = """
from image_bills import IMAGES, depended_on
from install import closure, dependencies_of, pins
declared = {one for image in IMAGES for folder in closure(image) for one in dependencies_of(folder)}
needed = depended_on([*(one for one in declared if not one.startswith("spawnmesh-")), "hatchling"])
print("".join(pins()[name] for name in sorted(needed)))
"""


def test_no_step_names_an_architecture() -> None:
    words = re.compile(r"amd64|x86|arm64|aarch64", re.IGNORECASE)
    for file in (DOCKER / "Dockerfile", DOCKER / "install.py"):
        assert not words.search(file.read_text()), file


def test_platforms_are_those_of_the_page() -> None:
    page = (ROOT / "docs/howto/install-on-kubernetes.md").read_text()
    assert f"--platform {','.join(PLATFORMS)}" in page


@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_pinned_package_has_a_wheel_for_the_platform(platform: str, tmp_path: Path) -> None:
    """A wheel whose hash is among the pinned ones. Nothing is installed."""
    script = [sys.executable, "-c", _PINS_OF_ALL_IMAGES]
    pinned = subprocess.run(script, cwd=DOCKER, check=True, stdout=subprocess.PIPE, text=True).stdout
    (tmp_path / "pins.txt").write_text(pinned)
    machine = PLATFORMS[platform]
    accepted = [f"--platform=manylinux_2_{minor}_{machine}" for minor in _GLIBC]
    accepted += [
        f"--platform=manylinux2014_{machine}",
        *(f"--abi={abi}" for abi in ("cp311", "abi3", "none")),
    ]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"),
            *("--ignore-installed", "--no-deps", "--require-hashes", "--only-binary", ":all:"),
            *("--python-version=3.11", "--implementation=cp", f"--target={tmp_path / 'none'}", *accepted),
            *("--report", str(tmp_path / "report.json"), "-r", str(tmp_path / "pins.txt")),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode and "from versions: none" in done.stderr and "Retrying" in done.stderr:
        pytest.skip("the package index cannot be read from here")
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["install"]) == len(re.findall(r"^\S+==", pinned, re.MULTILINE)) > 80
