"""Packages of npm for tests that run Node."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

OLDEST_NODE = 20
_INSTALL = ("npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund")
_BOUNDED = ("--prefer-offline", "--fetch-retries=0", "--fetch-timeout=10000")
_UNREACHABLE = re.compile(
    r"npm error (?:code|errno) (ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|E(?:NET|HOST)UNREACH|"
    r"ERR_SOCKET_TIMEOUT|E40[137]|E5\d\d)"
)


def install_packages(folder: Path, *more: str | Path) -> None:
    """Install the packages that `package.json` of the folder names, and `more`.

    Skips the test without Node or npm, and where the packages cannot be read.
    """
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            pytest.skip(f"this machine has no {command}")
    version = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"Node is {version.strip()}, and the packages need {OLDEST_NODE} or newer")
    installed = subprocess.run([*_INSTALL, *_BOUNDED, *more], cwd=folder, capture_output=True, text=True)
    if code := _UNREACHABLE.search(installed.stderr):
        pytest.skip(f"the packages of Node cannot be read from here: {code[1]}")
    assert installed.returncode == 0, installed.stderr
