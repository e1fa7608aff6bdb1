"""Build wheels of this repository, and install them into empty environments."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def install_module() -> Any:
    """Return `deploy/docker/install.py` as a module: it is in no package."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "deploy" / "docker" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pip(*arguments: str | Path) -> str:
    """Run pip, and return what it prints."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def empty_environment(python: str, directory: Path) -> Path:
    """Create a virtual environment without any package; return its Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(directory)], check=True)
    return directory / "bin" / "python"


def packed_again(names: Iterable[str], folder: Path) -> None:
    """Write a wheel of each package, from the files that are installed here, into the folder."""
    folder.mkdir()
    for name in names:
        found = distribution(name)
        files = [file for file in found.files or () if ".." not in file.parts and file.suffix != ".pyc"]
        tag = next(line[5:] for line in (found.read_text("WHEEL") or "").splitlines() if line[:5] == "Tag: ")
        wheel = folder / f"{name.replace('-', '_')}-{found.version}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            for file in files:
                packed.write(found.locate_file(file), file)
