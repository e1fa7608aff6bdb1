"""The contracts as other tools get them: written once, as `make contracts` writes them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make contracts` fills, somewhere else."""
    folder = tmp_path_factory.mktemp("contracts")
    subprocess.run([sys.executable, ROOT / "libs/protos/bundle.py", folder], check=True)
    return folder


@pytest.fixture
def unzipped(bundle: Path, tmp_path: Path) -> Path:
    """The zip of the contracts, unpacked in a folder that has nothing else."""
    with zipfile.ZipFile(bundle / "spawnmesh-protos.zip") as zipped:
        zipped.extractall(tmp_path / "unzipped")
    return tmp_path / "unzipped"


@pytest.fixture
def checkout(bundle: Path, tmp_path: Path) -> Path:
    """The part of a checkout that `buf` reads, after `make contracts`."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "protos", root / "protos")
    shutil.copytree(bundle, root / "build/contracts")
    shutil.copyfile(ROOT / "buf.yaml", root / "buf.yaml")
    return root
