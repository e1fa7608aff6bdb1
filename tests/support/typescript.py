"""The package of the TypeScript client, built from the contracts of this checkout."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.npm import install_packages

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "clients" / "typescript"
_MADE = shutil.ignore_patterns("node_modules", "dist", "build", "gen", "__pycache__")


@dataclass(frozen=True, slots=True)
class TypeScriptPackage:
    """The sources with all that was built of them, and the packed file."""

    sources: Path
    packed: Path


def build_package(folder: Path) -> TypeScriptPackage:
    """Build a copy of the sources in the folder, as `make typescript` does in the checkout.

    Skips the test without Node, and where the packages of npm cannot be read.
    """
    sources = folder / "clients" / "typescript"
    shutil.copytree(SOURCE, sources, ignore=_MADE)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    install_packages(sources)
    contracts = folder / "contracts"
    for command in (
        [sys.executable, ROOT / "libs/protos/bundle.py", contracts],
        [sys.executable, sources / "build.py", contracts, folder],
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    (packed,) = folder.glob("*.tgz")
    return TypeScriptPackage(sources, packed)
